"""Training of the zoo and of adapters: `bench train`, `bench import`; recipes hold all settings."""
