"""Regression: two runs held against each other, on one machine or against a stored reference."""
