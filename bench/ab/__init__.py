"""Two checkouts measured interleaved, and how fit a machine is for that.

Imports measure, verify, compare and below.
"""
