"""What only the pages of the book need: the checks of the exercises, and the register of claims."""
