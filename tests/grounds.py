"""What a suite can stand on: a backend, an image and a profile under one name.

`local` is bubblewrap on the host image; `local/debian` the same on a Debian image, and so on. The
images are built and imported once and kept below build/, except for an ordinary user, who has a
store of its own. Used by tests/conformance and tests/security; tests/matrix runs them on all.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.model.image import Image
from sandkasten.model.limits import Limits
from sandkasten.model.spec import CellSpec
from tests import imagekit

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.model.spec import Profile
    from sandkasten.ports import Backend


@dataclass(frozen=True, slots=True)
class Ground:
    backend: str
    image: str = "host"
    profile: Profile = "hardened"

    @property
    def traits(self) -> frozenset[str]:
        """What a test can be asked only of, or not of."""
        kind = "host" if self.image == "host" else "image"
        return frozenset({self.backend, kind, self.image, self.profile})

    def has(self, program: str) -> bool:
        match self.image:
            case "debian":
                return program not in _NOT_IN_DEBIAN
            case "busybox":
                return program in (*imagekit.APPLETS, "busybox")
            case _:
                return program == "python3" or shutil.which(program) is not None


GROUNDS = {
    "memory": Ground("memory"),
    "local": Ground("local"),
    "local/debian": Ground("local", "debian"),
    "local/busybox": Ground("local", "busybox"),
    "local/dev": Ground("local", "debian", "dev"),
    "oci": Ground("oci"),
    "oci/debian": Ground("oci", "debian"),
    "gvisor": Ground("gvisor"),
    "gvisor/debian": Ground("gvisor", "debian"),
}
# Of the contract, as `-k` has it: what another kernel, another way into the namespaces or another
# root could change. The rest is the runner's own work, and the same program everywhere.
OFTEN = (
    "(test_port or test_commands or test_shells or test_deadlines or test_rest or test_pausing)"
    " and not hundred and not thousand and not newest_256"
)
LONG = os.environ.get("SANDKASTEN_LONG") == "1"
# Of the programs a test of ours asks for: what a minimal Debian lacks.
_NOT_IN_DEBIAN = frozenset({"bwrap", "less", "node", "pkexec", "sudo", "vi"})
_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
}
# An ordinary user cannot build them, and gets the archives from whoever starts it.
ARCHIVES = "SANDKASTEN_TEST_ARCHIVES"


def open_backend(ground: Ground, data_dir: Path) -> Backend:
    if ground.backend == "memory":
        from sandkasten.backends.memory import MemoryBackend

        return MemoryBackend()
    if ground.backend == "local":
        from sandkasten.backends.local import LocalBackend

        return LocalBackend(data_dir=data_dir)
    from sandkasten.backends.oci import OciBackend

    return OciBackend(data_dir=data_dir, runtime="runc" if ground.backend == "oci" else "runsc")


def spec_on(ground: Ground, limits: Limits | None = None) -> CellSpec:
    return CellSpec(
        image=image_named(ground.image), limits=limits or Limits(), profile=ground.profile
    )


@cache
def image_named(name: str) -> Image:
    if name == "host":
        return Image("host")
    lent = os.environ.get(ARCHIVES)
    root = imagekit.CACHE / "store" if lent is None else Path(os.environ["HOME"]) / "images"
    archive = _TARS[name]() if lent is None else Path(lent) / f"{name}.tar"
    store = imagekit.store_with(root, (name, archive))
    found = store.find(name)
    assert found is not None
    return Image(
        name=name,
        kind="layers",
        id=found.id,
        layers=store.trees(found),
        env=dict(found.config.env),
    )
