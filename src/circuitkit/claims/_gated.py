"""What the post on gated attention blocks says, recomputed."""
