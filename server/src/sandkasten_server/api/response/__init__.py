"""How values become responses: JSON, event streams, ranges, documents."""
