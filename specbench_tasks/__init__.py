"""The six task families: generators, loaders and scorers. See docs/adding-a-task.md."""
