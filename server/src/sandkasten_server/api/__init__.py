"""The HTTP API of the engine. Thin: parses requests, calls the engine, writes responses."""
