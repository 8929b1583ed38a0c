"""A daemon somewhere else as a transport. Loaded when an address is given, and not before."""
