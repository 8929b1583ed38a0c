"""The SDK: what a program imports to use sandboxes. Start at `sandbox.py`.

It knows errors and the nouns of `model`; the engine it reaches only through `embedded.py`.
"""
