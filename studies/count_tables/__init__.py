"""Training gated blocks of toy models more than ten times faster, by counting tokens."""
