"""The command line of Sandkasten, in a process that can choose the unisolated backend."""

from __future__ import annotations

from sandkasten_server.cli.main import main
from tests.unisolated.composition import install

if __name__ == "__main__":
    install()
    main()
