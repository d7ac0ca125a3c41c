"""Models of the transformers library; no other folder of the core imports that library."""
