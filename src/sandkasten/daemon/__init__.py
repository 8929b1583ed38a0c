"""Settings and the composition root: the one place that imports everything."""
