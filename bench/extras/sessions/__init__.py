"""Several sessions of one job, and what they pool to."""
