"""Models with known distributions, and the tests that decoders are held to."""
