"""Versions of libraries, for tests that the oldest ones allowed cannot pass."""

from importlib.metadata import version


def older(package: str, than: tuple[int, int]) -> bool:
    """Tell whether the installed version of a package is older than ``(major, minor)``."""
    major, minor, *_ = version(package).split(".")
    return (int(major), int(minor)) < than
