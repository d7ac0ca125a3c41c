"""Training what drafts from a last hidden state, for any model: heads, a layer, or an exit."""
