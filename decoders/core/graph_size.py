"""Sizes of graphs: numbers of rows rounded up, so that shapes are few."""

from __future__ import annotations

from collections.abc import Iterable


def graph_size(number: int, bucketed: bool) -> int:
    """Round a size up: to a power of two if `bucketed`, else to 2, as 1 needs another graph."""
    return power_of_two(max(1, number)) if bucketed else max(2, number)


def first_rows(rows: Iterable[int], num_rows: int) -> range:
    """Return all of `num_rows` rows up to the last of `rows`, rounded up to a power of two."""
    return range(min(power_of_two(max(rows) + 1), num_rows))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number."""
    return 1 << (number - 1).bit_length()
