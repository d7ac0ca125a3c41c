"""C-PTP from scratch without a teacher, beside an AR model."""
