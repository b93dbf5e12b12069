"""Measure how correct answers are: `eval` scores models on labelled rows, `review` collects labels."""
