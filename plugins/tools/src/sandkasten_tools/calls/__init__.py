"""What a call of a tool does in its sandbox: schemas, arguments, sandboxes and answers."""
