"""Use cases: requests turned into calls on a backend and on the runner. No HTTP."""
