"""Training rows of token ids from corpora, chats and sampled completions."""
