"""The tools that give an agent a computer: their shapes, what they do, and ways to offer them."""
