"""Training the embedded target and its draft."""
