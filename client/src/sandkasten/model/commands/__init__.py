"""Commands: requests, results, kept output and the reason a command ended."""
