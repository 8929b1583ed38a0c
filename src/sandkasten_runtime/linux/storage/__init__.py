"""Disk images, named volumes, mounts and trees on the host."""
