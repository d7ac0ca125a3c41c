"""The verbs of the command line, parsed, called and printed; a file per heading of `bench --help`.

Heavy modules are imported only inside functions: ``bench --help`` answers at once.
"""
