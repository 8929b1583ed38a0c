"""Sandboxes in Fly Machines: microVMs that are rented over Fly's Machines API."""
