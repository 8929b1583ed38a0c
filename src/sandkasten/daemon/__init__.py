"""Settings, the assembly of an engine and of a daemon from all packages, and the process."""
