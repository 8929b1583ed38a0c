"""Transfer of files and trees between this machine and a sandbox."""
