"""One report of several runs.

No torch here.
"""
