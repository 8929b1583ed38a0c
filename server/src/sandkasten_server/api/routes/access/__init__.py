"""Routes of keys, secrets and the audit log."""
