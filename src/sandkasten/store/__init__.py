"""Storage of the ledger. Other packages see only `ports.Store`."""
