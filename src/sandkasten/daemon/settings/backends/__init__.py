"""Settings about the choice of a backend."""
