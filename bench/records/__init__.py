"""Formats on disk: the files of a run, line by line."""
