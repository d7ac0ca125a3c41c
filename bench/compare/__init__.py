"""Comparison of two runs, which shows whether anything regressed."""
