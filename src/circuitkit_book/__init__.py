"""What only the pages of the book need.

It holds the checks of the exercises, the register of claims, and the constructions, toy tasks and stored
tables of single chapters.
"""
