"""The parts of a spec that the launcher sets up: the root, writable directories, mounts.

Knows where things are on the host; decides nothing about isolation. `refuse` raises before anything
is made; the other functions return parts of the launcher's plan.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, InvalidImage, UnsupportedByBackend
from sandkasten.model.sandbox.cell_spec import (
    E2B_HOME,
    TMP,
    WORKSPACE,
    CellSpec,
    home,
    root_is_writable,
)
from sandkasten.model.sandbox.policy import check_profile_on
from sandkasten_runtime.linux.host_requirements import loop_usable
from sandkasten_runtime.linux.storage import workspace_image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_runtime.linux.state_layout import Layout


RESOLV = "/etc/resolv.conf"
VOLUME, CHANGES = "volume", "changes"
"""The scratch disks in a cell's directory."""


def refuse(spec: CellSpec, *, root: bool) -> None:
    """Raise if this host does not support the spec; nothing was made yet."""
    if spec.image.kind == "engine":
        raise UnsupportedByBackend(
            f"image {spec.image.name} belongs to another backend and is not in the store",
            hint="bring it into the store (docker save, sandkasten image import)",
        )
    if spec.image.kind == "layers" and not spec.image.layers:
        raise InvalidImage(f"image {spec.image.name} has no layers", hint="import it again")
    bad = [name for name, value in spec.image.env.items() if not _sound(name, value)]
    if bad:
        raise InvalidImage(
            f"image {spec.image.name} sets an invalid environment name: {bad[0]!r}",
            hint="rebuild the image without it",
        )
    check_profile_on(spec.profile, spec.image)
    if spec.profile == "dev" and not root:
        raise UnsupportedByBackend(
            "the dev profile requires a range of ids, and an ordinary user has one id",
            hint="run as root, or use profile: hardened",
            profile="dev",
        )
    if root_is_writable(spec) and not root:
        raise UnsupportedByBackend(
            "a writable root requires Sandkasten to run as root",
            hint="run as root, or set defaults.readonly_rootfs: true",
        )
    volume = spec.workspace
    if volume is not None and volume.kind == "image" and not loop_usable(root=root):
        raise BackendUnavailable(
            "the workspace is an ext4 image, and no loop device can be used here",
            hint="run as root with /dev/loop-control, or use a workspace of kind directory",
        )


def _sound(name: str, value: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name and "\0" not in value


def root_plan(layout: Layout, cell: Path, spec: CellSpec) -> dict[str, object] | None:
    """Return the root of the plan; None for the host image, which bubblewrap assembles itself."""
    if spec.image.kind == "host":
        return None
    places = [
        _place("/proc", 0o555), _place("/dev"), _place(TMP, 0o1777), _place("/run"),
        # That of a build is below /run, which is mounted empty.
        *((_place(WORKSPACE),) if spec.workspace_at == WORKSPACE else ()),
        _place(home(spec), 0o700 if spec.profile == "dev" else 0o755),
    ]  # fmt: skip
    if spec.image.home_is_free:
        places.append(_place(E2B_HOME))
    if not spec.network.closed:
        places.append(_place(RESOLV, 0o644, directory=False))
    places += [_place(m.target, directory=os.path.isdir(m.path)) for m in spec.mounts]
    writable = root_is_writable(spec)
    return {
        "layers": list(spec.image.layers),
        "writable": writable,
        # A workspace that outlives the sandbox must not be filled with changes to its root.
        "volume": scratch(layout, cell, spec, CHANGES) if writable and _own_changes(spec) else None,
        "places": places,
    }


def _own_changes(spec: CellSpec) -> bool:
    """Return whether changes of the root need a volume of their own."""
    if spec.workspace is not None:
        return True
    if spec.files is None:
        return False
    copied = spec.files.volume("workspace")
    # Ids on a copy of a named workspace are those inside, where the overlay cannot work as root.
    inside = copied is not None and copied.first_id == 0
    return inside or spec.files.volume(CHANGES) is not None


def first_ids(spec: CellSpec) -> tuple[tuple[str, int], ...]:
    """See `CellState.first_ids`."""
    copied = () if spec.files is None else spec.files.volumes
    return tuple((VOLUME if c.name == "workspace" else c.name, c.first_id) for c in copied)


def _place(path: str, mode: int = 0o755, *, directory: bool = True) -> dict[str, object]:
    return {"path": path, "mode": mode, "directory": directory}


def workspace_plan(layout: Layout, cell: Path, spec: CellSpec) -> dict[str, object]:
    volume = spec.workspace
    if volume is None:
        return scratch(layout, cell, spec)
    if volume.kind == "directory":
        return {"kind": "directory", "path": volume.path}
    return {"kind": "image", "path": volume.path, "keep": True, "reserved": volume.reserved}


def scratch(layout: Layout, cell: Path, spec: CellSpec, name: str = VOLUME) -> dict[str, object]:
    """Return a writable directory that is removed with the sandbox, limited by its quota."""
    size = spec.limits.workspace_bytes
    copied = None
    if spec.files is not None:
        copied = spec.files.volume("workspace" if name == VOLUME else name)
    if not loop_usable(root=os.geteuid() == 0):
        if copied is not None:
            raise BackendUnavailable(
                "the files of a snapshot are in an ext4 image, and no loop device can be used here",
                hint="run as root with /dev/loop-control",
            )
        return {"kind": "tmpfs", "bytes": size}
    volume = cell / name
    if spec.files is not None and copied is not None:
        reserved = workspace_image.make_copy(
            Path(spec.files.path, copied.name),
            volume,
            size,
            reserve=spec.reserve_disk,
            min_free=spec.min_free_bytes,
        )
        image = {"kind": "image", "path": os.fspath(volume), "reserved": reserved}
        return {**image, "first_id": copied.first_id}
    reserved = workspace_image.make(
        volume,
        size,
        templates=layout.shared("templates"),
        reserve=spec.reserve_disk,
        min_free=spec.min_free_bytes,
    )
    return {"kind": "image", "path": os.fspath(volume), "reserved": reserved}


def mount_name(index: int) -> str:
    """Return the mount's name on the launcher's stage, so that no host path is visible inside."""
    return f"m{index}"


def mounts_plan(spec: CellSpec, *, overlays: bool = True) -> list[dict[str, object]]:
    """Return the host mounts. An overlay does not show later changes of what is below it, so only
    content that never changes is private.
    """
    return [
        {
            "source": mount.source,
            "below": mount.below,
            "owner": mount.owner and asdict(mount.owner),
            "name": mount_name(index),
            "private": overlays and bool(mount.content),
        }
        for index, mount in enumerate(spec.mounts)
    ]


_PROGRAMS = "programs"


def private_plan(runner: Path, directories: Mapping[str, Path | str]) -> list[dict[str, object]]:
    """Return what is shown through overlays: the runner's directory, and directories by name."""
    shown = {_PROGRAMS: runner.parent, **directories}
    return [{"source": os.fspath(source), "name": name} for name, source in shown.items()]


def private_runner(stage: str, runner: Path) -> Path:
    """Return where the runner is on the stage, once the private directories are there."""
    return Path(stage, _PROGRAMS, runner.name)
