"""Measure two commits interleaved, gate CI, and test whether a machine is fit to measure on."""
