"""Statistics of records: counters, times, intervals, quality, validity.

Pure functions of records. Imports records and below. No torch.
"""
