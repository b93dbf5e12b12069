"""Make the answer fit."""
