"""Trains what the benchmark runs on: the embedded target and its draft."""
