"""The built book as an archive, its pictures and reports, and its address."""
