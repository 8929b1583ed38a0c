"""The description of a sandbox that every backend renders in its own way."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkCeiling, NetworkPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.sandbox.gpus import GpuRequest
    from sandkasten.model.sandbox.inspection import Inspection

Profile = Literal["hardened", "dev"]

WORKSPACE = "/workspace"
# Another name of the workspace.
WORKSPACE_ALIAS = "/work"
HOME = "/home/sandbox"
# Where programs for E2B keep their files: another name of the workspace.
E2B_HOME = "/home/user"
VAR_TMP = "/var/tmp"  # noqa: S108  (the same directory as TMP where the image is ours to change)
TMP = "/tmp"  # noqa: S108  (a path inside the sandbox, private and sized)
USER_NAME = "sandbox"
USER_ID = 1000
RUNNER_ID = 999
ROOT_HOME = "/root"
RUNNER_DIR = "/run/sandkasten"
RUNNER_PROGRAM = f"{RUNNER_DIR}/runner"
BUILD_WORKSPACE = f"{RUNNER_DIR}/workspace"
"""Where a step of an image build has its workspace: /workspace is the image's own there."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_PROGRAMS = "/etc/sandkasten/bin"
"""Programs that the host image has besides those of the host; see `linux.storage.host_root`."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A workspace that outlives its sandbox: an ext4 image, or a directory for ordinary users.

    On disk it holds ids as they are inside (1000 is the user), whatever range a sandbox has. Of
    kind `volume`, only the backend knows where it is, and `path` is the name of the workspace.
    """

    path: str
    kind: Literal["image", "directory", "volume"]
    reserved: bool = False
    """Whether the image has all of its blocks, which it must keep."""


@dataclass(frozen=True, slots=True)
class CopiedVolume:
    """A volume of a sandbox, copied as a file."""

    name: Literal["workspace", "changes"]
    """changes: those of the root, if they are on a volume of their own."""
    first_id: int
    """The id on it that is 0 inside."""


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """The files that a sandbox could write, as they were at one moment."""

    path: str
    """A directory of this machine: a file for each volume, and `tmp` for /tmp."""
    volumes: tuple[CopiedVolume, ...]
    method: Literal["reflink", "extents"] = "extents"
    """How the volumes were copied."""
    tmp: bool = False
    """Whether /tmp is among them."""

    def volume(self, name: str) -> CopiedVolume | None:
        return next((volume for volume in self.volumes if volume.name == name), None)


@dataclass(frozen=True, slots=True)
class HostOwner:
    """The user and the group that own a directory of the host."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class HostMount:
    """A directory or file of the host; only the operator's policy creates one."""

    source: str
    target: str
    content: str = ""
    """Identifies content that never changes, such as a set of packages: a backend that does not
    see this machine's files may show a copy. Empty: the source is shown as it is now."""
    below: str | None = None
    """Not None: the source has no symlink, and this path below it is shown (empty: all of it). The
    launcher follows no link in either."""
    owner: HostOwner | None = None
    """The sandbox's user may write here, and on the host its files are this owner's. None:
    read-only."""

    @property
    def path(self) -> str:
        return f"{self.source}/{self.below}" if self.below else self.source


@dataclass(frozen=True, slots=True)
class CellSpec:
    """Everything that isolation needs to know, and nothing about the caller."""

    image: Image
    limits: Limits = field(default_factory=Limits)
    profile: Profile = "hardened"
    network: NetworkPolicy = CLOSED
    ceiling: NetworkCeiling = field(default_factory=NetworkCeiling)
    """What the operator opens besides public addresses."""
    inspection: Inspection | None = field(default=None, repr=False)
    """What is inspected on the way out, and the secrets that are inserted there."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    hostname: str = "sandbox"
    workspace: Volume | None = None
    """None: a fresh one that goes with the sandbox."""
    files: CopiedFiles | None = None
    """What its volumes and /tmp contain at the start; None: nothing."""
    mounts: tuple[HostMount, ...] = ()
    gpus: GpuRequest | None = None
    reserve_disk: bool = False
    """Whether all space of what goes with the sandbox is taken when it is made."""
    min_free_bytes: int = 0
    """What must stay free on the host's disk."""
    writable_root: bool = False
    """Whether the root of an image is writable in the hardened profile too. Changes count against
    the workspace's size and end with the sandbox."""
    workspace_at: str = WORKSPACE
    """Where the workspace is inside: WORKSPACE or BUILD_WORKSPACE."""
    place: str = ""
    """The part of its platform that gets the sandbox, as `ports.Places` names it; empty: any."""


@dataclass(frozen=True, slots=True)
class RootChanges:
    """Changes in a writable root as overlayfs stores them: a directory of this machine.

    Ids in it are the sandbox's plus `first_id`. The content is untrusted: never follow a link in
    it.
    """

    tree: str
    first_id: int


def root_is_writable(spec: CellSpec) -> bool:
    return spec.profile == "dev" or (spec.writable_root and spec.image.kind != "host")


def writes_to_host(spec: CellSpec) -> bool:
    return any(mount.owner is not None for mount in spec.mounts)


def user_id(spec: CellSpec) -> int:
    """Return the user id that commands have inside."""
    return 0 if spec.profile == "dev" else USER_ID


def home(spec: CellSpec) -> str:
    return ROOT_HOME if spec.profile == "dev" else HOME


def base_environment(spec: CellSpec) -> dict[str, str]:
    """Return the environment of every command: fixed names, then the image's, then the caller's."""
    name = "root" if spec.profile == "dev" else USER_NAME
    host_path = f"{HOST_PROGRAMS}:" if spec.image.kind == "host" else ""
    return {
        "PATH": host_path + DEFAULT_PATH,
        "HOME": home(spec),
        "USER": name,
        "LOGNAME": name,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": TMP,
        **spec.image.env,
        **spec.env,
    }
