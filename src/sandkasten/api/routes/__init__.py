"""Every route, by what it speaks of. A module lists its own; `table` puts the lists together."""
