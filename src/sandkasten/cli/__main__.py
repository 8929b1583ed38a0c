"""`python -m sandkasten.cli`: the command line where its script is not on the path."""

from __future__ import annotations

from sandkasten.cli.main import main

main()
