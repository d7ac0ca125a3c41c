"""Train the zoo and adapters: `bench train`, `bench import`. Recipes hold all settings."""
