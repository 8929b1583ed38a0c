"""All routes by subject. A module lists its own; `route_table` joins the lists."""
