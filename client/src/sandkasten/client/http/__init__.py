"""The transport to a daemon over HTTP. Loaded only when an address is given."""
