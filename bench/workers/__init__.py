"""A run's blocks handed to several workers: each holds the models open, and takes block by block.

Imports what measures, and what is below it.
"""
