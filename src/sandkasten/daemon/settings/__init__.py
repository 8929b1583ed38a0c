"""Settings: their sources, types, defaults and documentation."""
