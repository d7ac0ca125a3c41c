"""A run's blocks handed to several workers: each holds the models open, and takes block by block.

Imports measure and below.
"""
