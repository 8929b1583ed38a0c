"""`python -m sandkasten_server.cli`: the command line where its script is not on the path."""

from __future__ import annotations

from sandkasten_server.cli.main import main

main()
