"""Define the file formats of a run folder."""
