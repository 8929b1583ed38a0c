"""Files, locks, processes and clean-up on this machine: the primitives that every room shares."""
