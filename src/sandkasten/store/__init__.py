"""Where the ledger is kept: behind `ports.Store`, nothing else knows how."""
