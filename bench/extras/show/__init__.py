"""Print a run's answers step by step, or its prompts (`bench show`, `bench show-prompts`)."""
