"""Add features to the core, which imports none of them (`bench.registry`).

Each feature has its own folder and, if it has verbs, a file ``cli.py``.
"""
