"""What a sandbox may be asked for, what it is, and what it may use."""
