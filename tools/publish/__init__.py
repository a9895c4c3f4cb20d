"""The built book in other forms: archive, PDF, pictures, and how fast its pages show."""
