"""Make training rows of token ids from corpora, chats and sampled completions."""
