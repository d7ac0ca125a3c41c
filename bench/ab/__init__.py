"""Two checkouts measured interleaved, and how fit a machine is for that."""
