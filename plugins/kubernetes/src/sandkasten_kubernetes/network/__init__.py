"""Networks by rule: the egress process in a Pod, and how it is controlled."""
