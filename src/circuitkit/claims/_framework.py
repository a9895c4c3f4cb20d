"""What the framework paper and the notes on it say, recomputed."""
