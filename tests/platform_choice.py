"""What a suite can stand on: a backend, an image and a profile under one name.

`local` is bubblewrap on the host image; `local/debian` the same on a Debian image, and so on. Those
of docker are named by where the workspace is and where we are: `docker/shared` and `docker/inside`
hold only for a run that is itself in a container (see tests/engines/inside.py). The
images are built and imported once and kept below build/, except for an ordinary user, who has a
store of its own. Used by tests/conformance and tests/security; tests/matrix runs them on all.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.limits import Limits
from tests import imagekit
from tests.engines import inside, lent, stock

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from sandkasten.model.sandbox.cell_spec import Profile
    from sandkasten.ports import Backend
    from sandkasten_docker.docker_options import WorkspaceMode
    from tests.engines.reached import Reached


Cells = Literal["fresh", "ahead", "reused"]
"""Where a test's sandbox comes from (tests/cell_pool.py): made for it, made ahead, or used again.

Docker takes a quarter of a second to make one. Between its grounds only mounts and the way in
differ, so that one of them makes all of its sandboxes anew (busybox, of which less is asked); every
day the others use theirs again. So do runc, for which the contract takes half as long then, and
gVisor (a third less); `local` makes a new one for every test.
"""
LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
_OTHERS: Cells = "ahead" if LONG else "reused"
_ENGINES: Cells = "fresh" if LONG else "reused"


@dataclass(frozen=True, slots=True)
class Ground:
    backend: str
    image: str = "host"
    profile: Profile = "hardened"
    where: str = ""
    """Of docker: the workspace's mode, or the place the engine is seen from."""
    cells: Cells = "fresh"
    kept: Literal["store", "engine"] = "store"
    """Whose the image is: our store's, with our users in it, or the engine's own, as it is."""
    claimed: bool = False
    """Whether a sandbox is made for the warm pool and then claimed (tests/claimed_cells.py)."""

    @property
    def traits(self) -> frozenset[str]:
        """What a test can be asked only of, or not of."""
        kind = "host" if self.image == "host" else "image"
        where = {f"{self.backend}/{self.where}"} if self.where else set()
        whose = {"engine's image"} if self.kept == "engine" else set()
        return frozenset({self.backend, kind, self.image, self.profile, *where, *whose})

    @property
    def inside(self) -> bool:
        """Whether the run itself must be in a container of the engine."""
        return self.where in ("shared", "inside")

    def has(self, program: str) -> bool:
        match self.image:
            case "debian":
                return program not in _NOT_IN_DEBIAN
            case "busybox":
                return program in (*imagekit.APPLETS, "busybox")
            case _:
                return program == "python3" or shutil.which(program) is not None


GROUNDS = {
    "unisolated": Ground("unisolated"),
    "local": Ground("local"),
    "local/debian": Ground("local", "debian"),
    "local/busybox": Ground("local", "busybox"),
    "local/dev": Ground("local", "debian", "dev"),
    "local/claimed": Ground("local", claimed=True),
    "oci": Ground("oci", cells=_ENGINES),
    "oci/debian": Ground("oci", "debian"),
    "gvisor": Ground("gvisor", cells=_ENGINES),
    "gvisor/debian": Ground("gvisor", "debian"),
    "docker/volume": Ground("docker", "debian", where="volume", cells=_OTHERS),
    "docker/bind": Ground("docker", "debian", where="bind", cells=_OTHERS, kept="engine"),
    "docker/shared": Ground("docker", "debian", where="shared", cells=_OTHERS, kept="engine"),
    "docker/inside": Ground("docker", "debian", where="inside", cells=_OTHERS, kept="engine"),
    "docker/remote": Ground("docker", "debian", where="remote", cells=_OTHERS, kept="engine"),
    "docker/busybox": Ground("docker", "busybox", where="volume", cells="ahead", kept="engine"),
    # On a real cluster: see tests/cluster/lent_cluster.py.
    "kubernetes": Ground("kubernetes", "debian", cells="reused", kept="engine"),
    "kubernetes/exec": Ground("kubernetes", "debian", cells="reused", kept="engine", where="exec"),
    # Machines of providers: what stands for them is in tests/cloud.
    "fly": Ground("fly", "debian", cells="reused", kept="engine"),
    "e2b": Ground("e2b", "debian", cells="reused", kept="engine"),
    "modal": Ground("modal", "debian", cells="reused", kept="engine"),
}
# The rows of docs/reference/grounds.md. Those of a user are tested by an ordinary one.
TITLES = {
    "local": "bubblewrap on the machine's own files",
    "local/debian": "bubblewrap on a Debian image",
    "local/busybox": "bubblewrap on a busybox image: no bash, no Python",
    "local/dev": "bubblewrap on a Debian image with the dev profile: root inside",
    "local/claimed": "bubblewrap on the machine's own files, made for the warm pool and claimed",
    "user local": "bubblewrap on the machine's own files, by an ordinary user",
    "user local/debian": "bubblewrap on a Debian image, by an ordinary user",
    "oci": "runc on the machine's own files",
    "gvisor": "gVisor on the machine's own files",
    "docker/bind": "Docker on this machine, workspaces are directories that both see",
    "docker/volume": "Docker on this machine, workspaces are the engine's volumes",
    "docker/shared": "Docker, from inside a container that has the volume of all sessions",
    "docker/inside": "Docker, from inside a container that has the socket and nothing else",
    "docker/remote": "Docker on another machine, over TCP with certificates of both sides",
    "docker/busybox": "Docker on a busybox image: no bash, no Python",
}
# Of these the contract alone is asked, with `all`: one isolates nothing, and what is around a
# machine is its provider's.
CONTRACT_ONLY = ("unisolated", "e2b", "fly", "modal")
# The rows of `make test-cluster`, which the other targets do not run.
CLUSTER_TITLES = {
    "kubernetes": "a Pod on Kubernetes, reached at its address",
    "kubernetes/exec": "a Pod on Kubernetes, reached through the API server",
}


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a suite that `make test` runs on a platform; `make test-long` runs all of it."""

    files: tuple[str, ...] = ()
    """Names of test modules without `test_`; empty for all of them."""
    without: tuple[str, ...] = ()
    """Tests of these aspects (the marker `aspect`) are left to `make test-long`."""

    def has(self, module: str, aspects: Set[str]) -> bool:
        in_files = not self.files or module.removeprefix("test_") in self.files
        return in_files and not aspects & {*self.without}

    def files_in(self, folder: str) -> list[str]:
        """Return the files of a suite in that folder, as arguments of pytest."""
        return [f"{folder}/test_{name}.py" for name in self.files] or [folder]

    def __str__(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.files) or "everything"
        aspects = ", ".join(f"`{aspect}`" for aspect in self.without)
        return f"{names} (without the aspects {aspects})" if aspects else names


Suite = Literal["contract", "security"]
# The rest of the contract is done by the runner, which is the same program everywhere.
_ENTRY = Part(("port",), ("large",))
# What is left when a sandbox ends is the same for every place of the workspace.
_PLACE = Part(("port",), ("large", "ending"))
# Where commands and shells are started in another way.
_COMMANDS = Part(("port", "commands"), ("large",))
_CLOSED = ("posture", "network", "kernel_surface")
_POSTURE = Part(("posture",), ("every_way_in",))
# How a shell is started does not depend on the place of the workspace.
_PLACE_POSTURE = Part(("posture",), ("every_way_in", "shell_posture"))
PARTS: dict[tuple[Suite, str], Part] = {
    ("contract", "unisolated"): _COMMANDS,
    # That programs in an interpreter which was started before behave alike is shown on `local`.
    ("contract", "oci"): Part((), ("large", "held")),
    # What a damaged file does is decided by code that `local` and docker/volume have.
    ("security", "oci"): Part((*_CLOSED, "lifecycle"), ("damage",)),
    # gVisor is another runtime of the backend oci: only what its kernel may do differently.
    ("contract", "gvisor"): Part(
        ("port", "commands", "shells", "deadlines_and_signals", "files"), ("large", "paging")
    ),
    ("security", "gvisor"): Part(_CLOSED),
    ("contract", "local/debian"): _ENTRY,
    ("security", "local/debian"): _POSTURE,
    ("contract", "local/dev"): _COMMANDS,
    ("security", "local/dev"): Part(_CLOSED, ("every_way_in",)),
    # What a claim changes; the rest does not depend on when the sandbox was made.
    ("contract", "local/claimed"): _PLACE,
    ("security", "local/claimed"): _POSTURE,
    ("contract", "local/busybox"): Part((*_ENTRY.files, "shells"), ("large",)),
    ("security", "local/busybox"): _POSTURE,
    ("contract", "docker/volume"): Part((), ("large", "paging", "held")),
    # Paths, archives, output and shells are the runner's work, which is attacked on `local`.
    ("security", "docker/volume"): Part(
        (*_CLOSED, "lifecycle", "resources"),
        ("neighbour", "bomb"),
    ),
    ("contract", "docker/bind"): _PLACE,
    ("security", "docker/bind"): _PLACE_POSTURE,
    ("contract", "docker/shared"): _PLACE,
    ("security", "docker/shared"): _PLACE_POSTURE,
    ("contract", "docker/inside"): _PLACE,
    ("security", "docker/inside"): _PLACE_POSTURE,
    ("contract", "docker/remote"): _PLACE,
    ("security", "docker/remote"): _PLACE_POSTURE,
    ("contract", "docker/busybox"): _PLACE,
    ("security", "docker/busybox"): _PLACE_POSTURE,
    # The runner is in a machine of a provider: behind a WebSocket, a port or a relay.
    ("contract", "e2b"): _PLACE,
    ("contract", "fly"): _PLACE,
    ("contract", "modal"): _PLACE,
    # The other way in carries the same bytes.
    ("contract", "kubernetes/exec"): Part(("port", "commands", "output"), ("large",)),
    ("security", "kubernetes/exec"): _POSTURE,
    ("contract", "user local"): _COMMANDS,
    ("security", "user local"): _POSTURE,
    ("contract", "user local/debian"): _PLACE,
    ("security", "user local/debian"): _POSTURE,
}


def part(suite: Suite, platform: str) -> Part:
    """Return what of a suite to run on a platform; in full sizes that is everything."""
    return Part() if LONG else PARTS.get((suite, platform), Part())


def every_platform() -> list[str]:
    """Return the platforms that one process can test: outside of a container, and as root."""
    return [name for name in TITLES if name in GROUNDS and not GROUNDS[name].inside]


# Of the programs a test of ours asks for: what a minimal Debian lacks.
_NOT_IN_DEBIAN = frozenset({"bwrap", "less", "node", "pkexec", "sudo", "vi"})
_TARS: dict[str, Callable[[], Path]] = {
    "debian": imagekit.debian_tar,
    "busybox": imagekit.busybox_tar,
}
# An ordinary user cannot build them, and gets the archives from whoever starts it.
ARCHIVES = "TEST_SANDKASTEN_ARCHIVES"


def open_backend(ground: Ground, data_dir: Path) -> Backend:
    if ground.backend == "unisolated":
        from tests.unisolated.backend import UnisolatedBackend

        return UnisolatedBackend()
    if ground.backend == "local":
        from sandkasten_runtime.backends.local.backend import LocalBackend
        from tests.claimed_cells import ClaimedLocalBackend

        return (ClaimedLocalBackend if ground.claimed else LocalBackend)(data_dir=data_dir)
    if ground.backend == "docker":
        return _open_docker(ground, data_dir)
    if ground.backend == "fly":
        from tests.cloud.fly_platform import open_lent

        return open_lent(data_dir)
    if ground.backend == "kubernetes":
        from tests.kubernetes.cluster_images import open_on_cluster

        return open_on_cluster(data_dir, ground.where)
    if ground.backend == "e2b":
        from tests.cloud.e2b_service import open_on_e2b

        return open_on_e2b(data_dir)
    if ground.backend == "modal":
        from tests.cloud.modal.modal_service import open_on_modal, service

        return open_on_modal(service(), data_dir)
    from sandkasten_runtime.backends.oci.backend import OciBackend

    return OciBackend(data_dir=data_dir, runtime="runc" if ground.backend == "oci" else "runsc")


def engine_of(ground: Ground, *, outside: bool = False) -> Reached:
    """The engine of this run that the ground stands on, with its image in it.

    `outside`: only to start a run in a container of it.
    """
    if ground.inside and not inside.is_inside() and not outside:
        raise RuntimeError(f"docker/{ground.where} is for a run in a container: see tests/matrix")
    images = (ground.image,) if ground.kept == "engine" else ()
    return lent.engine("remote" if ground.where == "remote" else "local", *images)


def place_for(ground: Ground, scratch: Path) -> Path:
    """A directory of that name where the ground can do all that it can do.

    An engine sees what we mount only where its machine shares that with ours.
    """
    if ground.where != "bind":
        return scratch
    return Path(engine_of(ground).shares) / scratch.name


def _open_docker(ground: Ground, data_dir: Path) -> Backend:
    from sandkasten_docker.backend import DockerBackend
    from sandkasten_docker.docker_options import DockerOptions
    from sandkasten_runtime.images.layers.image_store import LayerStore
    from sandkasten_runtime.images.store_packer import StorePacker

    engine, name = engine_of(ground), "docker"
    match ground.where:
        case "remote":
            # As one of several engines of an installation.
            name = "docker/remote"
            place = Path(engine.certificates)
            options = DockerOptions(
                host=engine.host,
                tls_ca=str(place / "ca.pem"),
                tls_cert=str(place / "cert.pem"),
                tls_key=str(place / "key.pem"),
            )
        case "inside" | "shared":
            # Nothing is said at all: how things are is found out.
            options = DockerOptions()
        case mode:
            options = DockerOptions(host=engine.host, workspace=cast("WorkspaceMode", mode))
    packer = StorePacker(LayerStore(image_store())) if ground.kept == "store" else None
    return DockerBackend(data_dir, options, name=name, packer=packer)


def spec_on(ground: Ground, limits: Limits | None = None) -> CellSpec:
    if ground.backend == "kubernetes":
        from tests.kubernetes.cluster_images import reference

        image = Image(name=reference(ground.image), kind="engine")
    elif ground.backend == "fly":
        image = Image(name="registry.fly.io/sandboxes:debian", kind="engine")
    elif ground.backend in ("e2b", "modal"):
        image = Image(name=ground.image, kind="engine")
    elif ground.kept == "engine":
        image = Image(name=stock.reference(ground.image), kind="engine")
    else:
        image = image_named(ground.image)
    return CellSpec(image=image, limits=limits or Limits(), profile=ground.profile)


def image_store() -> Path:
    """Return the store that has the images of `image_named`."""
    own = os.environ.get(ARCHIVES) is not None
    return Path(os.environ["HOME"]) / "images" if own else imagekit.CACHE / "store"


@cache
def image_named(name: str) -> Image:
    if name == "host":
        return Image("host")
    given = os.environ.get(ARCHIVES)
    archive = _TARS[name]() if given is None else Path(given) / f"{name}.tar"
    store = imagekit.store_with(image_store(), (name, archive))
    found = store.find(name)
    assert found is not None
    return Image(
        name=name,
        kind="layers",
        id=found.id,
        layers=store.trees(found),
        env=dict(found.config.env),
    )
