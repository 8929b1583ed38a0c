"""The images of an engine in tests: a Debian, a busybox, one without a shell, one with programs.

There is no registry; root file systems are imported. `references` are their names.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests import imagekit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.reached import Reached

_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
    # One static program, /prog, as a distroless image has it.
    "empty": imagekit.empty_tar,
}

PROGRAMS = "programs"
_PROGRAMS = (
    "bin/curl",
    "bin/git",
    "lib/git-core/git-remote-http*",
    "lib/postgresql/*/bin/psql",
)


def reference(name: str) -> str:
    return f"{name}:test"


def put(engine: Reached, *names: str) -> None:
    """Import those images that the engine does not have."""
    there = engine.images()
    for name in names:
        if reference(name) in there:
            continue
        if name == PROGRAMS:
            put(engine, "debian")
            _add_programs(engine)
        else:
            engine.docker("import", str(_TARS[name]()), reference(name))


def _add_programs(engine: Reached) -> None:
    """Add programs of this machine to the Debian image, with their libraries."""
    programs = [path for pattern in _PROGRAMS for path in Path("/usr").glob(pattern)]
    words = ["ldd", *map(str, programs)]
    linked = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    libraries = {Path(word) for word in linked.split() if word[0] == "/" and word[-1] != ":"}
    container = engine.docker("create", reference("debian"), "/bin/true").strip()
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(file.name, "w", dereference=True) as tar:
            for path in (*programs, *sorted(libraries)):
                if not path.name.startswith(("libc.so", "ld-linux")):
                    # The image has /lib as a link to /usr/lib.
                    tar.add(path, str(path.parent.resolve() / path.name))
        engine.docker("cp", "-", f"{container}:/", stdin=Path(file.name))
    engine.docker("commit", container, reference(PROGRAMS))
    engine.docker("rm", container)
