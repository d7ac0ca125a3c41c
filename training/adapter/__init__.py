"""Trains an adapter for any causal LM.

Imports text and the shared files of training.
"""
