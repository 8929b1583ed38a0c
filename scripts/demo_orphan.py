"""Create a sandbox, write its id to a file, and wait to be killed: step 3 of the demo."""

from __future__ import annotations

import signal
from pathlib import Path

from sandkasten import Sandbox


def main() -> None:
    box = Sandbox()
    box.exec("cd /tmp && export A=1")
    Path("sandbox-id").write_text(box.id)
    signal.pause()


if __name__ == "__main__":
    main()
