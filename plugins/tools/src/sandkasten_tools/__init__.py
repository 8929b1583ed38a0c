"""Tools that give an agent a computer: schemas, implementation, and adapters."""
