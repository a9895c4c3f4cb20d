"""The hashes of the shipped data, and the numbers in the prose."""
