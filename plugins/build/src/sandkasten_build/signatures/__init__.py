"""Signatures of images: where they are, what they contain, and whose they must be."""
