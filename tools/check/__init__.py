"""Checks that are too long or too wide for one test: planted faults, numbers in prose, other environments."""
