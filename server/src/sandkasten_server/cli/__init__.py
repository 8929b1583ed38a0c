"""The command line: it reaches sandboxes through the client only."""
