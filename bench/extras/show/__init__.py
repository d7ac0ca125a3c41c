"""`bench show`: answers with the tokens of each step coloured."""
