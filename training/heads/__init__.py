"""Train adapters that draft from hidden states, for any model: heads, a layer, or layers."""
