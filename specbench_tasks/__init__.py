"""Provide the six task families: generators, loaders, scorers. See docs/adding-a-task.md."""
