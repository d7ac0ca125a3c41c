"""Collect decoders that are loops of other libraries, which import the core, never the reverse.

`decoders.core.registry` finds a decoder's file here by its name, as those beside this folder.
"""
