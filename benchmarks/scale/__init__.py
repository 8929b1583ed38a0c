"""Many sessions and replicas against a simulated cluster."""
