"""Train adapters of slots for any causal LM."""
