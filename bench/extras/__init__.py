"""Features that hang on the core from outside (`bench.registry`); the core imports none of them.

Each has its own folder and, where it has verbs, a file ``cli.py``.
"""
