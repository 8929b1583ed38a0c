"""Builds an engine from the settings: the only place that knows all parts of the runtime."""
