"""Commands, terminals and port streams inside a sandbox."""
