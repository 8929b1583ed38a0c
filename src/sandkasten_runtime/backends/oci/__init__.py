"""Isolation by an OCI runtime: runc or crun, or gVisor's runsc. Imported on first use."""
