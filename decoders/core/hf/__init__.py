"""Run models of the transformers library, which no other folder of the core imports."""
