"""Write a run's numbers in the formats of other tools."""
