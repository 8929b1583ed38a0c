"""A language model asked over the chat completions of an endpoint."""
