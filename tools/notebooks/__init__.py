"""How notebooks are executed and how the readers' copies are made."""
