"""A workspace of exact size, mounted on the host, that a container engine on this machine can bind.

    <directory>/volume.img   the ext4 image, when it is the sandbox's own
    <directory>/kept         which one it is, when it outlives the sandbox (JSON)
    <directory>/mnt          where it is mounted, with `workspace` and `home` in it

Each of these exists before the step it describes, so `release` needs only the directory. Knows no
policy and no engines: only an engine knows whether it sees our mounts. Blocking; raises classes
of `errors` only. sandkasten-launch mounts, because it already has the rules about loop devices: one
per file, freed by its last user.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.file_lock import wait_for_lock
from sandkasten.disk.os_errors import translated
from sandkasten.disk.tree_removal import remove_tree
from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    IsolationRefused,
    SandkastenError,
    WorkspaceDamaged,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten_runtime.linux import launcher
from sandkasten_runtime.linux.host_requirements import loop_usable
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.storage import ext4, mountinfo, workspace_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.model.sandbox.cell_spec import Volume

_IMAGE: Final = "volume.img"
_KEPT: Final = "kept"
POINT: Final = "mnt"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Ids of one user namespace of an engine, as /etc/subuid assigns them.
_RANGE: Final = 65536
# The same time that the local backend allows a workspace with much unwritten data.
_DEADLINE_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.005
_SYS_ADMIN: Final = 21
# A loop device over these waits for a network or a program, and the whole machine's sync with it.
_FOREIGN: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse", "virtiofs", "vfat")


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """Directories of the host, none of them a symlink, owned as requested."""

    workspace: Path
    home: Path


def make(
    directory: Path,
    size_bytes: int,
    *,
    owner: int,
    templates: Path,
    reserve: bool = False,
    min_free: int = 0,
    programs: Programs | None = None,
) -> MountedVolume:
    """Create a volume below `directory`, which only root may enter; `owner` is a host id.

    `templates` is a directory of images to copy from. With `reserve` all of its space is taken,
    where the file system can do that. A failure leaves nothing behind.
    """
    with _making(directory, "make a workspace") as real:
        image = real / _IMAGE
        reserved = workspace_image.make(
            image, size_bytes, templates=templates, reserve=reserve, min_free=min_free
        )
        (real / POINT).mkdir(mode=0o700)
        volume = {
            "kind": "image",
            "path": os.fspath(image),
            "keep": False,
            "reserved": reserved,
        }
        return _mount(real, volume, owner, 0, programs)


def open_kept(
    directory: Path,
    volume: Volume,
    *,
    owner: int,
    first_id: int = 0,
    programs: Programs | None = None,
) -> MountedVolume:
    """Mount a workspace that outlives the sandbox, and its home; several sandboxes may share it.

    `first_id`: the host id where the engine's user namespace starts. The ids inside are on disk, so
    the mount shows them shifted.
    """
    if volume.kind == "image":
        ext4.look(Path(volume.path))
    with _making(directory, "open a workspace") as real:
        record = json.dumps({"path": volume.path, "kind": volume.kind})
        write_file(real / _KEPT, record.encode(), durable=False)
        (real / POINT).mkdir(mode=0o700)
        plan = {
            "kind": volume.kind,
            "path": volume.path,
            "keep": True,
            "reserved": volume.reserved,
        }
        return _mount(real, plan, owner, first_id, programs)


def release(directory: Path, *, timeout_s: float = _DEADLINE_S) -> None:
    """Unmount the volume and remove `directory` with its contents. Twice is fine; so is a half-made
    one.

    Its users must have ended: a volume of the sandbox's own rejects all access from here on.
    Returns when the loop device is gone, unless other sandboxes use the same kept workspace.
    BackendUnavailable names what still holds it; the next call continues from there.
    """
    real = _real(directory)
    with translated("remove a workspace", BackendUnavailable), _turn(real, timeout_s) as there:
        if there:
            _unmount(real, timeout_s)
            remove_tree(real)


def supported(directory: Path, programs: Programs | None = None) -> str | None:
    """Return why volumes cannot be mounted below `directory`, or None. It need not exist yet.

    From inside a container it is unknown whether an engine outside sees our mounts: ask it.
    """
    if os.geteuid() != 0:
        return "only root can mount an image"
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return "root of a user namespace cannot mount an image"
    if not _effective() >> _SYS_ADMIN & 1:
        return "this process may not mount (CAP_SYS_ADMIN)"
    if not loop_usable(root=True):
        return "no loop device can be used (/dev/loop-control)"
    if workspace_image.mkfs_program() is None:
        return "mkfs.ext4 is not installed"
    if not os.access(_launcher(programs), os.X_OK):
        return "sandkasten-launch is not there"
    at = Path(os.path.realpath(directory))
    while not at.exists() and at != at.parent:
        at = at.parent
    if not os.access(at, os.W_OK | os.X_OK):
        return f"{at} cannot be written"
    mount = mountinfo.covering(os.fspath(at))
    if mount is None:
        return f"the file system of {at} is unknown"
    if mount.kind.partition(".")[0] in _FOREIGN:
        return f"{at} lies on {mount.kind}, which cannot hold an image"
    if not _passed_on(mount.tags):
        return "this process has mounts of its own, which nothing outside of it sees"
    return None


# ---- making


@contextmanager
def _making(directory: Path, attempt: str) -> Iterator[Path]:
    real = _real(directory)
    with translated(attempt, BackendUnavailable):
        with suppress(FileExistsError):
            real.mkdir(mode=0o700)
        status = real.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o077
        ):
            raise IsolationRefused(
                f"{real} must be a directory that only root can enter",
                hint="remove it, or give it to root with mode 0700",
            )
        if any(os.path.lexists(real / name) for name in (_IMAGE, _KEPT, POINT)):
            raise Conflict(f"{real} holds a volume already", hint="release it first")
        try:
            yield real
        except BaseException:
            # Only our own part: the caller checks its own files there.
            with suppress(SandkastenError, OSError), _turn(real, _DEADLINE_S) as there:
                if there:
                    _unmount(real, _DEADLINE_S)
                    for name in (_IMAGE, _KEPT):
                        (real / name).unlink(missing_ok=True)
            with suppress(OSError):
                real.rmdir()
            raise


def _mount(
    real: Path, volume: dict[str, object], owner: int, first_id: int, programs: Programs | None
) -> MountedVolume:
    shifted = {"base": first_id, "count": _RANGE, "expect": owner} if first_id else None
    plan = {
        "volume": volume,
        "directory": os.fspath(real),
        "name": POINT,
        "owner": owner - first_id,
        "id_map": shifted,
    }
    launcher.launch(_launcher(programs), {"visible": plan})
    mounted = MountedVolume(real / POINT / "workspace", real / POINT / "home")
    for place in (mounted.workspace, mounted.home):
        # An engine would follow a symlink here, as root and on the host.
        if not stat.S_ISDIR(place.lstat().st_mode):
            raise WorkspaceDamaged(
                f"{place.name} of the workspace is not a directory",
                hint="restore the workspace from a copy, or delete it",
            )
    return mounted


def _launcher(programs: Programs | None) -> Path:
    return (programs or Programs.found(None, None)).launcher


# ---- removing


def _unmount(real: Path, timeout_s: float) -> None:
    """Unmount everything below it, so that no device holds what was mounted."""
    point = real / POINT
    image, is_kept = _image(real)
    while any(mount.point == os.fspath(point) for mount in mountinfo.under(os.fspath(real))):
        if not is_kept:
            _abandon(point)
        mountinfo.detach(os.fspath(point))
    if mounts := mountinfo.under(os.fspath(real)):
        raise BackendUnavailable(
            f"something else is mounted on {mounts[0].point}",
            hint=f"unmount it: umount {mounts[0].point}",
        )
    # Not only for tidiness: removing its mount point removes a mount from every other mount
    # namespace too. Namespaces created while it was mounted have copies of it, which would keep the
    # device busy.
    with suppress(FileNotFoundError):
        remove_tree(point)
    if image is not None:
        _await_device(image, timeout_s, shared=is_kept)


def _image(real: Path) -> tuple[str | None, bool]:
    """Return the image that was mounted, if known, and whether it outlives the sandbox."""
    try:
        raw = json.loads((real / _KEPT).read_bytes())
        return (str(raw["path"]) if raw["kind"] == "image" else None), True
    except FileNotFoundError:
        return os.fspath(real / _IMAGE), False
    except (ValueError, KeyError, TypeError):
        return None, True


def _abandon(point: Path) -> None:
    with suppress(OSError):
        root = os.open(point, _DIRECTORY)
        try:
            workspace_image.abandon(root)
        finally:
            os.close(root)


def _await_device(image: str, timeout_s: float, *, shared: bool) -> None:
    device = workspace_image.device_of(image)
    if device is None or (shared and mountinfo.holders(device)):
        return
    if workspace_image.await_detached(image, timeout_s):
        return
    pids = ", ".join(str(pid) for pid in mountinfo.holders(device))
    raise BackendUnavailable(
        f"loop device {device} still holds {image}",
        hint=f"it is mounted in the mount namespace of process {pids}: see /proc/<pid>/mountinfo"
        if pids
        else "a file in it is open; the next release goes on once it is closed",
    )


# ---- both


def _real(directory: Path) -> Path:
    """Return the path as the kernel lists it; the caller checks the last component when it
    opens it.
    """
    return Path(os.path.realpath(directory.parent), directory.name)


@contextmanager
def _turn(real: Path, timeout_s: float) -> Iterator[bool]:
    """Lock the directory: a launcher whose caller was killed may still be working there."""
    try:
        descriptor = os.open(real, _DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        if not wait_for_lock(descriptor, timeout_s=timeout_s):
            raise BackendUnavailable(
                f"another process is still using {real}", hint="try again in a moment"
            )
        # The previous holder of the lock may have removed it.
        yield os.fstat(descriptor).st_nlink > 0
    finally:
        os.close(descriptor)


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _passed_on(tags: tuple[str, ...]) -> bool:
    """Return whether the machine itself sees our mounts: its mount namespace is ours, or has
    peers.
    """
    try:
        # This path is in the machine's own namespace, and not visible from a container.
        if Path("/proc/2/comm").read_text() != "kthreadd\n":
            return True
        if os.readlink("/proc/2/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return True
    except OSError:
        return True
    shared = any(tag.startswith("shared:") for tag in tags)
    return shared and not any(tag.startswith("master:") for tag in tags)
