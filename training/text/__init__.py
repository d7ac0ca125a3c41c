"""Rows of token ids: corpora, chats, sampled completions."""
