"""Signatures of images: where they are, what they say, and whose they must be."""
