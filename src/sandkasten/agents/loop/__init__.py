"""An agent at work: the model asked, its tools called, until it answers."""
