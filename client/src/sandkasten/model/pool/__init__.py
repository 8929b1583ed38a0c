"""Values and rules of the warm pool."""
