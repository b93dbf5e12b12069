"""Say how right answers are: `eval` scores models on labelled rows, and `review` lets a person label them."""
