"""Rows of token ids: corpora, chats, sampled completions.

Imports the shared files of training.
"""
