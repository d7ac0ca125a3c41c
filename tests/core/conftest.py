"""Graphs whose outputs the next run overwrites, for all tests of this folder."""

from tests.lent_outputs import lent_outputs

__all__ = ["lent_outputs"]
