"""Print answers with the tokens of each step coloured (`bench show`)."""
