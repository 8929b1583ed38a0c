"""Records in files: the ledger, the audit log, secrets and runs."""
