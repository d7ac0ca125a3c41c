"""What every decoder stands on: data, models, sampling, scheduling, contract checks."""
