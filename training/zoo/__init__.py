"""Train the embedded target and its draft model."""
