"""Checkpoints of other projects as adapters of this one."""
