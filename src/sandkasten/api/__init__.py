"""HTTP: the engine for whoever speaks it. Thin: parses, asks the engine, prints what it said."""
