"""Nine methods that look for the wires of a circuit, compared on models whose wires are known."""
