"""The decoder interface (its files keep their paths), and the engine behind it."""
