"""Files, locks and processes of this machine: the primitives that every room shares."""
