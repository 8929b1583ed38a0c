"""The command line: it speaks to sandboxes through the client, like everybody else."""
