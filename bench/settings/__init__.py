"""Define the settings of a run: configuration, bounds, protocols, published numbers."""
