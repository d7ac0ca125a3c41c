"""File formats of a run folder."""
