"""Define the decoder interface (whose files keep their paths) and the engine behind it."""
