"""Runs for ``results/reference``: checked, and stored in a compact folder."""
