"""Provide models with known distributions, and statistical tests of decoders."""
