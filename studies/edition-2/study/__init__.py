"""Long experiments whose results are stored in the package."""
