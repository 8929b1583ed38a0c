"""The images of an engine in tests: a Debian, a busybox, one without a shell, and one with curl.

There is no registry; root file systems are imported. `references` are their names.
"""

from __future__ import annotations

import shutil
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

CURL = "curl"


def reference(name: str) -> str:
    return f"{name}:test"


def put(engine: Reached, *names: str) -> None:
    """Import those images that the engine does not have."""
    there = engine.images()
    for name in names:
        if reference(name) in there:
            continue
        if name == CURL:
            put(engine, "debian")
            _add_curl(engine)
        else:
            engine.docker("import", str(_TARS[name]()), reference(name))


def _add_curl(engine: Reached) -> None:
    """Add this machine's curl to the Debian image."""
    curl = shutil.which("curl", path="/usr/bin:/bin")
    assert curl is not None
    linked = subprocess.run(["ldd", curl], capture_output=True, text=True, check=True).stdout
    paths = [word for word in linked.split() if word.startswith("/") and "libc.so" not in word]
    container = engine.docker("create", reference("debian"), "/bin/true").strip()
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(file.name, "w", dereference=True) as tar:
            for path in (curl, *(one for one in paths if "ld-linux" not in one)):
                # The image has /lib as a link to /usr/lib.
                tar.add(path, str(Path(path).parent.resolve() / Path(path).name))
        engine.docker("cp", "-", f"{container}:/", stdin=Path(file.name))
    engine.docker("commit", container, reference(CURL))
    engine.docker("rm", container)
