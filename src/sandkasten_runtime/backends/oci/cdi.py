"""Devices by the Container Device Interface: which ones there are, and what each adds to a sandbox.

Reads the specifications of `/etc/cdi` and `/var/run/cdi`, which the operator's tools write. Of a
device's edits only character devices, read-only mounts and variables are used; hooks, which are
programs that run on the host, only if the operator allows it. Raises UnsupportedByBackend with what
is missing or cannot be given, and PolicyDenied for hooks.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidConfiguration, PolicyDenied, UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.cell_spec import HostMount
from sandkasten.model.sandbox.gpus import ALL
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sandkasten.model.sandbox.gpus import GpuRequest

DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_MAX_FILES: Final = 64
_MAX_BYTES: Final = 4 << 20
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*/([A-Za-z0-9_-]+)\Z")
_HOOKS: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
# A sandbox mounts these itself, or must not get anything there.
_RESERVED: Final = ("/proc", "/sys", "/dev", "/workspace", "/tmp", "/run/sandkasten", "/home")  # noqa: S108


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device of the host and its path inside."""

    source: str
    target: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceEdits:
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[HostMount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    hooks: tuple[tuple[str, dict[str, object]], ...] = ()
    """The stage of the runtime and the hook, as the runtime's configuration has it."""


@dataclass(frozen=True, slots=True)
class _Device:
    kind: str
    name: str
    edits: tuple[dict[str, Any], ...]
    """Its own and those of its specification."""

    @property
    def qualified(self) -> str:
        return f"{self.kind}={self.name}"


@dataclass(frozen=True, slots=True)
class DeviceSpecs:
    """`read_yaml` reads a YAML file as plain values. Blocking."""

    directories: tuple[str, ...] = DIRECTORIES
    hooks_allowed: bool = False
    read_yaml: Callable[[Path], object] | None = field(default=None, repr=False)

    def edits(self, request: GpuRequest, *, host_image: bool) -> DeviceEdits:
        """Return what the requested GPUs add to a sandbox."""
        devices = self._chosen(request)
        raw = [edit for device in devices for edit in device.edits]
        # Devices of one specification share its general edits.
        unique = list(
            {json.dumps(edit, sort_keys=True, default=str): edit for edit in raw}.values()
        )
        hooks = tuple(hook for edit in unique for hook in _hooks(edit))
        if hooks and not self.hooks_allowed:
            raise PolicyDenied(
                f"device {devices[0].qualified} requires hooks, which are programs that run on the "
                "host",
                hint="set oci.cdi_hooks: true if you trust the programs in the specification",
                rule="oci.cdi_hooks",
            )
        return DeviceEdits(
            nodes=tuple(dict.fromkeys(node for edit in unique for node in _nodes(edit))),
            mounts=tuple(
                dict.fromkeys(m for edit in unique for m in _mounts(edit, host_image=host_image))
            ),
            env=tuple(dict.fromkeys(pair for edit in unique for pair in _env(edit))),
            hooks=hooks,
        )

    def _chosen(self, request: GpuRequest) -> list[_Device]:
        devices = list(self._devices())
        if not devices:
            raise UnsupportedByBackend(
                f"no GPU is described in {' or '.join(self.directories)}",
                hint="write a specification, such as: nvidia-ctk cdi generate "
                "--output=/etc/cdi/nvidia.yaml",
                field="gpus",
            )
        if request.ids:
            return [_named(device_id, devices) for device_id in request.ids]
        single = [device for device in devices if device.name != "all"]
        # A GPU may also have a device with its serial number as name.
        single = [device for device in single if device.name.isdecimal()] or single
        if request.count == ALL:
            whole = [device for device in devices if device.name == "all"]
            return whole[:1] or single
        if request.count > len(single):
            raise UnsupportedByBackend(
                f"{request.count} GPUs were requested, and this machine has {len(single)}",
                hint="request fewer",
                field="gpus",
            )
        return single[: request.count]

    def _devices(self) -> Iterator[_Device]:
        for path in self._files():
            tree = self._read(path)
            kind = tree.get("kind") if isinstance(tree, dict) else None
            form = _KIND.match(kind) if isinstance(kind, str) else None
            if form is None or not isinstance(tree.get("devices"), list):
                raise _invalid(path, "is not a specification of the Container Device Interface")
            if form[1] != "gpu":
                continue
            general = _mapping(path, tree.get("containerEdits"))
            for entry in tree["devices"]:
                device = _mapping(path, entry)
                own = _mapping(path, device.get("containerEdits"))
                yield _Device(str(kind), str(device.get("name", "")), (general, own))

    def _files(self) -> list[Path]:
        files: dict[str, Path] = {}
        for directory in self.directories:
            try:
                names = sorted(os.listdir(directory))
            except OSError:
                continue
            # A later directory overrides a file of the same name.
            specs = [name for name in names if name.endswith((".json", ".yaml", ".yml"))]
            files |= {name: Path(directory, name) for name in specs[:_MAX_FILES]}
        return [files[name] for name in sorted(files)]

    def _read(self, path: Path) -> Any:
        if path.suffix != ".json" and self.read_yaml is not None:
            return self.read_yaml(path)
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise _invalid(path, f"is larger than {_MAX_BYTES} bytes")
            return json.loads(data)
        except (OSError, ValueError, RecursionError) as exc:
            raise _invalid(path, "cannot be read as JSON") from exc


def _named(wanted: str, devices: Sequence[_Device]) -> _Device:
    for device in devices:
        if wanted in (device.qualified, device.name):
            return device
    names = ", ".join(device.qualified for device in devices[:20])
    raise UnsupportedByBackend(
        f"this machine has no GPU {shown(wanted)}", hint=f"known: {names}", field="gpus"
    )


def _nodes(edits: dict[str, Any]) -> Iterator[DeviceNode]:
    for node in _listed(edits, "deviceNodes"):
        target = str(node.get("path", ""))
        source = str(node.get("hostPath") or target)
        if not target.startswith("/dev/") or ".." in target.split("/"):
            raise _refused(f"device node {shown(target)} is not below /dev")
        try:
            status = os.stat(source)
        except OSError as exc:
            raise _refused(f"device node {shown(source)} is missing") from exc
        if not stat.S_ISCHR(status.st_mode):
            raise _refused(f"{shown(source)} is not a character device")
        if status.st_mode & 0o006 != 0o006:
            # The sandbox's user is another user of the host, and in none of its groups.
            raise _refused(
                f"device {shown(source)} is not open to other users", f"chmod 0666 {source}"
            )
        yield DeviceNode(source, target, os.major(status.st_rdev), os.minor(status.st_rdev))


def _mounts(edits: dict[str, Any], *, host_image: bool) -> Iterator[HostMount]:
    for mount in _listed(edits, "mounts"):
        source, target = str(mount.get("hostPath", "")), str(mount.get("containerPath", ""))
        if not source.startswith("/") or not target.startswith("/") or ".." in target.split("/"):
            raise _refused(f"mount {shown(target)} is not an absolute path")
        if any(target == place or target.startswith(f"{place}/") for place in _RESERVED):
            raise _refused(f"mount {shown(target)} is a path that a sandbox mounts itself")
        if host_image and (source == target and target.startswith("/usr/")):
            continue  # The host image shows it already.
        if host_image and target.startswith(("/etc/", "/usr/")):
            continue  # Both are shown read-only, so nothing can be added.
        if not os.path.exists(source):
            raise _refused(f"{shown(source)} is missing")
        yield HostMount(source, target)


def _env(edits: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for entry in edits.get("env") or ():
        name, equals, value = str(entry).partition("=")
        if not equals or not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name) or "\0" in value:
            raise _refused(f"{shown(str(entry))} is not a variable")
        yield name, value


def _hooks(edits: dict[str, Any]) -> Iterator[tuple[str, dict[str, object]]]:
    for entry in _listed(edits, "hooks"):
        stage, path = entry.get("hookName"), entry.get("path")
        if stage not in _HOOKS or not isinstance(path, str) or not path.startswith("/"):
            raise _refused("a hook has an unknown stage or a relative path")
        hook: dict[str, object] = {"path": path}
        hook |= {name: entry[name] for name in ("args", "env", "timeout") if name in entry}
        yield str(stage), hook


def _listed(edits: dict[str, Any], name: str) -> list[dict[str, Any]]:
    entries = edits.get(name) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _refused(f"{name} is not a list of mappings")
    return entries


def _mapping(path: Path, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(path, "has a device or edits that are not a mapping")
    return value


def _refused(
    what: str, hint: str = "correct the specification in /etc/cdi"
) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"the GPU cannot be given to a sandbox: {what}", hint=hint, field="gpus"
    )


def _invalid(path: Path, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"{path} {what}", hint="write it again, or remove it")
