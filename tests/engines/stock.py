"""The images of an engine in tests: a Debian, a busybox, and one without a shell.

There is no registry; root file systems are imported. `references` are their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import imagekit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engines.reached import Reached

_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
    # One static program, /prog, as a distroless image has it.
    "empty": imagekit.empty_tar,
}


def reference(name: str) -> str:
    return f"{name}:test"


def put(engine: Reached, *names: str) -> None:
    """Import those images that the engine does not have."""
    there = engine.images()
    for name in names:
        if reference(name) not in there:
            engine.docker("import", str(_TARS[name]()), reference(name))
