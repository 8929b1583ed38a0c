"""The layer store: content on disk, records, locks and garbage."""
