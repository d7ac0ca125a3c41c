"""Formats on disk: what a run writes, line by line and file by file.

Imports settings, errors and text. No torch.
"""
