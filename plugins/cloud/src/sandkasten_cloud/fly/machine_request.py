"""What is sent to Fly for one machine, and what is read of it again. Pure functions.

The name of a machine is unique in its app and follows from the installation and the id of the
sandbox: a request that is repeated because its answer was lost never makes a second machine, and
machines are found by their names. A machine never restarts, and is destroyed when its first process
ends.
"""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import UnsupportedByBackend
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, host_label, is_sandbox_id
from sandkasten_cloud.provider import LABEL_OWNER

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from sandkasten_cloud.fly.fly_options import CpuKind, FlyOptions
    from sandkasten_cloud.provider import MachineOrder

# Ports of the app at which the gates of its machines are.
FIRST_PORT, LAST_PORT = 20_000, 59_999
# Fly publishes no limit for the files of a configuration, and warns of large ones.
MOST_FILE_BYTES: Final = 64 << 10
_NAME_PREFIX: Final = "sandkasten-"
_GATE_PORT: Final = "sandkasten_port"
_PORTS: Final = 1 << 16
_MIB: Final = 1 << 20
_STEP_MIB: Final = 256
_PRIVATE: Final = 0o600
# Has a socket of the Machines API, which gives tokens to programs of the machine.
_PROVIDER_DIRECTORY: Final = "/.fly"
_CPUS: Final[Mapping[str, tuple[int, ...]]] = {
    "shared": (1, 2, 4, 6, 8),
    "performance": (1, 2, 4, 6, 8, 10, 12, 14, 16),
}
# The least and the most memory for each processor, in MiB.
_MEMORY: Final[Mapping[str, tuple[int, int]]] = {
    "shared": (256, 2048),
    "performance": (2048, 8192),
}
# A machine in one of these is not, and will not be, a sandbox.
_ENDED: Final = frozenset(
    {"stopped", "failed", "destroying", "destroyed", "launch_failed", "replaced", "migrated"}
)

# What is read of a machine: strings, objects with some keys, and lists of one kind.
_CONFIG: Final[Mapping[str, Any]] = {"services": [{"ports": [{}]}], "metadata": {}}
_MACHINE: Final[Mapping[str, Any]] = {
    "id": str,
    "name": str,
    "state": str,
    "private_ip": str,
    "config": _CONFIG,
    "incomplete_config": _CONFIG,
    "events": [{"request": {"exit_event": {}, "MonitorEvent": {"exit_event": {}}}}],
}


@dataclass(frozen=True, slots=True)
class Size:
    cpus: int
    memory_mib: int


def size(cpus: float, memory_bytes: int, kind: CpuKind) -> Size:
    """Return the smallest size that has at least this much. Raise UnsupportedByBackend."""
    wanted = math.ceil(memory_bytes / _MIB / _STEP_MIB) * _STEP_MIB
    least, most = _MEMORY[kind]
    for count in _CPUS[kind]:
        if count >= cpus and count * most >= wanted:
            return Size(count, max(wanted, count * least))
    largest = _CPUS[kind][-1]
    raise UnsupportedByBackend(
        f"no Fly machine of kind {kind} has {cpus:g} processors and {wanted} MiB of memory",
        hint=f"ask for at most {largest} processors and {largest * most} MiB"
        + (", or set backends.fly.cpu_kind: performance" if kind == "shared" else ""),
        backend="fly",
    )


def machine_name(owner: str, sandbox_id: SandboxId) -> str:
    return f"{_NAME_PREFIX}{owner}-{host_label(sandbox_id).lower()}"


def create_body(order: MachineOrder, options: FlyOptions, port: int | None) -> dict[str, Any]:
    """Return the body of the request. `port`: the app's port of the gate; None: it has none."""
    wanted = size(order.cpus, order.memory_bytes, options.cpu_kind)
    config: dict[str, Any] = {
        "image": order.image,
        "init": {"exec": command(order, options.programs)},
        "env": dict(order.env),
        "files": _files(order),
        "guest": {
            "cpu_kind": options.cpu_kind,
            "cpus": wanted.cpus,
            "memory_mb": wanted.memory_mib,
        },
        "metadata": {**metadata(order.labels), _GATE_PORT: str(order.port)},
        "restart": {"policy": "no"},
        "auto_destroy": True,
    }
    if port is not None:
        config["services"] = [
            {
                "protocol": "tcp",
                "internal_port": order.port,
                # A request must never start a machine that has ended.
                "autostart": False,
                "autostop": "off",
                # No handlers: the bytes are passed on as they are.
                "ports": [{"port": port}],
            }
        ]
    # Secrets of the app are not for its sandboxes.
    name = machine_name(order.labels[LABEL_OWNER], order.sandbox_id)
    body = {"name": name, "config": config, "skip_secrets": True}
    region = order.region or options.region
    return {**body, "region": region} if region else body


def command(order: MachineOrder, programs: str) -> list[str]:
    """Return the command with the programs of the image in place of those of the order.

    What Fly does not do for its machines, the gate does: it ends them, and closes their network.
    """
    names = {path: f"{programs}/{path.rpartition('/')[2]}" for path in order.programs}
    words = list(order.command)
    runner = next((at for at, word in enumerate(words) if at and word in names), None)
    if runner is not None:
        closed = ["--no-network"] if order.network == "none" else []
        lifetime = ["--lifetime", str(math.ceil(order.lifetime_s))]
        words[runner:runner] = [*lifetime, *closed, "--hide", _PROVIDER_DIRECTORY]
    return [names.get(word, word) for word in words]


def metadata(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels as metadata, which only operators use: `metadata.NAME` is a filter, so a name
    has no dots.
    """
    return {name.replace(".", "_"): value for name, value in labels.items()}


def _files(order: MachineOrder) -> list[dict[str, Any]]:
    """Return the files other than programs, which are too large and are in the image."""
    small = {path: content for path, content in order.files.items() if path not in order.programs}
    if sum(map(len, small.values())) > MOST_FILE_BYTES:
        raise UnsupportedByBackend(
            f"files of a Fly machine can have {MOST_FILE_BYTES} bytes in all",
            hint="write them after the sandbox was created",
            backend="fly",
        )
    return [
        {
            "guest_path": path,
            "raw_value": base64.b64encode(content).decode(),
            "mode": _PRIVATE,
        }
        for path, content in sorted(small.items())
    ]


def free_port(used: Container[int], drawn: int) -> int:
    """Return the first port from the drawn one on that is not taken."""
    count = LAST_PORT - FIRST_PORT + 1
    for step in range(count):
        port = FIRST_PORT + (drawn - FIRST_PORT + step) % count
        if port not in used:
            return port
    raise UnsupportedByBackend(
        f"all {count} ports of the app are in use",
        hint="end sandboxes, or set backends.fly.reach: private",
        backend="fly",
    )


def wrong_part(machine: Any) -> str | None:
    """Return the path of a part that has another type than it is read as here; None if all are
    right. A part that is missing or null is right, except in a list.
    """
    problem = _wrong(machine, _MACHINE, "")
    return None if problem is None else problem or "machine"


def _wrong(value: Any, kind: Any, path: str) -> str | None:
    parts: Iterable[tuple[Any, Any, str]]
    if isinstance(kind, dict) and isinstance(value, dict):
        parts = (
            (value[key], part, f"{path}.{key}".lstrip("."))
            for key, part in kind.items()
            if value.get(key) is not None
        )
    elif isinstance(kind, list) and isinstance(value, list):
        parts = ((item, kind[0], f"{path}[]") for item in value)
    else:
        return None if kind is str and isinstance(value, str) else path
    return next((problem for part in parts if (problem := _wrong(*part)) is not None), None)


def service_port(machine: Mapping[str, Any]) -> int | None:
    """Return the app's port at which the gate of this machine is."""
    for service in _config(machine).get("services") or ():
        for port in service.get("ports") or ():
            if port.get("port") in range(1, _PORTS):
                return int(port["port"])
    return None


def sandbox_of(machine: Mapping[str, Any], owner: str) -> SandboxId | None:
    """Return the sandbox of this installation by the name of the machine. Root of a hostile image
    can change the metadata, through Fly's socket.
    """
    prefix, name = f"{_NAME_PREFIX}{owner}-", str(machine.get("name") or "")
    text = name.removeprefix(prefix).replace("-", "_")
    return SandboxId(text) if name.startswith(prefix) and is_sandbox_id(text) else None


def gate_port(machine: Mapping[str, Any]) -> int:
    """Return the port at which the gate listens inside."""
    text = str((_config(machine).get("metadata") or {}).get(_GATE_PORT))
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_PORTS))
    return int(text) if is_number and int(text) < _PORTS else 0


def is_destroyed(machine: Mapping[str, Any]) -> bool:
    return state(machine) in ("destroying", "destroyed")


def has_ended(machine: Mapping[str, Any]) -> bool:
    return state(machine) in _ENDED


def state(machine: Mapping[str, Any]) -> str:
    return str(machine.get("state") or "")


def end_of(machine: Mapping[str, Any]) -> str:
    """Return why a machine ended, as far as its events show it."""
    for event in machine.get("events") or ():
        request = event.get("request") or {}
        exit_event = request.get("exit_event") or (request.get("MonitorEvent") or {}).get(
            "exit_event"
        )
        if exit_event:
            why = "out of memory" if exit_event.get("oom_killed") else "its first process ended"
            return f"{why} (exit code {exit_event.get('exit_code', 0)})"
    return f"its state is {state(machine) or 'unknown'}"


def _config(machine: Mapping[str, Any]) -> Mapping[str, Any]:
    # A machine whose host cannot be reached has an incomplete one.
    return machine.get("config") or machine.get("incomplete_config") or {}
