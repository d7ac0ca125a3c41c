"""`bench sweep`: a grid of runs."""
