"""Compare two runs, and find regressions."""
