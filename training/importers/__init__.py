"""Convert checkpoints of other projects into adapters of this one."""
