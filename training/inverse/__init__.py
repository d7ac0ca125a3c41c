"""Train C-PTP from scratch without a teacher, and an AR model to compare it with."""
