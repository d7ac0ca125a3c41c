"""Features around the core, which imports none of them (`bench.registry`).

Each has its own folder and, where it has verbs, a file ``cli.py``.
"""
