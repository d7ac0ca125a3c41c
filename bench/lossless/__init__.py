"""Whether decoders keep the baseline's tokens or law: in a run, and by `bench verify`."""
