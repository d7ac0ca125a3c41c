"""Measures two checkouts interleaved, and checks how fit a machine is for that."""
