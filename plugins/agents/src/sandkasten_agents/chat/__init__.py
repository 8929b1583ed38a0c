"""Client for language models with a chat completions endpoint."""
