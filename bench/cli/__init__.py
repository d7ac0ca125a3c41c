"""The verbs of the command line, one file for each heading of ``bench --help``.

Imports everything, but heavy modules only inside functions: ``bench --help`` answers at once.
"""
