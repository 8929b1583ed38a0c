"""What a session has beside commands and files, over HTTP."""
