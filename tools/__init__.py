"""What the makers of the book run: `python -m tools` lists it. Readers and users of the library need none of it."""
