"""Control groups: limits, freezing and memory reclaim."""
