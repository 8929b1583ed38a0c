"""Settings of the providers of machines, one module for each."""
