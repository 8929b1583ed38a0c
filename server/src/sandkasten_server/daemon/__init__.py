"""The assembly of a daemon around an engine, its settings and metrics, and its process."""
