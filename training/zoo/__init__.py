"""Trains the embedded target and its draft model."""
