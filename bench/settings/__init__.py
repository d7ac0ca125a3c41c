"""Settings of a run: configuration, bounds, protocols, published numbers."""
