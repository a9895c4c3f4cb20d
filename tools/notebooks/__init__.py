"""How notebooks are written, executed, timed and guarded."""
