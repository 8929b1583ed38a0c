"""Commands for keys, secrets and the audit log."""
