"""Define the verbs of the command line, grouped by the headings of `bench --help`.

Heavy modules are imported only inside functions, so that ``bench --help`` answers at once.
"""
