"""Decoders that are another library's own loops: an extra imports the core, never the reverse.

`decoders.core.registry` finds a decoder's file here by its name, as those beside this folder.
"""
