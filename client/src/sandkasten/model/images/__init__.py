"""Images as values: names, resolved root file systems, store entries."""
