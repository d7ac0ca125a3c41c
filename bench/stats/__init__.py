"""Compute statistics of records: counters, times, intervals, quality, validity.

All functions are pure. The folder imports records and the layers below, never torch.
"""
