"""`bench cost` and `bench explain`: what a call costs by its shape, and where a run's time went."""
