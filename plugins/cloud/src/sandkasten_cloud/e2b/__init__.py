"""Machines of E2B, or of a service that speaks its protocol, such as another daemon."""
