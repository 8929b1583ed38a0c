"""Output of `ls`, `ps`, `stats`, `config show` and `version`."""

from __future__ import annotations

import asyncio
import platform
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sandkasten.cli.output import age, put, put_json, put_table, size
from sandkasten.cli.sandbox_names import resolve
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from sandkasten.cli.state import State
    from sandkasten.client.server.transport import Transport
    from sandkasten.model.sandbox.sandbox_values import Info, Process, Stats

# A sandbox that does not respond must not delay the list.
STATS_TIMEOUT_S: Final = 2.0


def moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")


def described(info: Info) -> dict[str, Any]:
    """Return the create response of the public contract, with further fields."""
    from sandkasten.model.sandbox.policy import public_limits
    from sandkasten.model.sandbox.sandbox_values import public_fields

    return {
        **public_fields(info),
        "workspace_mode": _mode(info),
        "mounts": [asdict(one) for one in info.mounts],
        "created_at": moment(info.created_at),
        "expires_at": moment(info.expires_at),
        "profile": info.profile,
        "labels": dict(info.labels),
        "limits": public_limits(info.limits),
        "unenforced": [asdict(one) for one in info.unenforced],
        "warnings": list(info.warnings),
    }


def _mode(info: Info) -> str | None:
    if info.workspace_id is None:
        return None
    return "shared" if info.workspace_shared else "exclusive"


async def sandboxes(state: State, *, everything: bool = False) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    infos = sorted(await transport.list(all=everything), key=lambda info: info.created_at)
    memory = await asyncio.gather(*(_memory(transport, info) for info in infos))
    if state.json:
        put_json(
            [
                {**described(info), "memory_bytes": used}
                for info, used in zip(infos, memory, strict=True)
            ]
        )
        return
    now = time.time()
    put_table(
        ("ID", "IMAGE", "STATE", "AGE", "MEMORY", "WORKSPACE", "KEY", "LABELS"),
        [
            (
                info.id,
                info.image,
                info.status,
                age(now - info.created_at),
                size(used),
                info.workspace_id or "-",
                info.session_key or "-",
                ",".join(f"{name}={value}" for name, value in info.labels.items()) or "-",
            )
            for info, used in zip(infos, memory, strict=True)
        ],
    )


async def _memory(transport: Transport, info: Info) -> int | None:
    if info.status not in ("running", "paused"):
        return None
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            # Counted by the kernel: asking the sandbox would count as activity.
            return (await transport.usage(info.id)).memory_bytes
    except (SandkastenError, TimeoutError):
        return None


async def processes(state: State, start: str) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    found = await transport.processes(await resolve(state, start))
    if state.json:
        put_json([_process(one) for one in found])
        return
    now = time.time()
    put_table(
        ("PID", "PPID", "UID", "STATE", "MEMORY", "CPU", "AGE", "COMMAND"),
        [
            (
                str(one.pid),
                str(one.ppid),
                str(one.uid),
                one.state,
                size(one.rss_bytes),
                f"{one.cpu_ms / 1000:.2f}s",
                age(now - one.started_at),
                " ".join(one.cmdline) or f"[{one.name}]",
            )
            for one in found
        ],
    )


def _process(one: Process) -> dict[str, Any]:
    return {**asdict(one), "cmdline": list(one.cmdline), "started_at": moment(one.started_at)}


async def stats(state: State, start: str) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    found = await transport.stats(await resolve(state, start))
    if state.json:
        put_json(asdict(found))
        return
    put_table(("WHAT", "NOW", "LIMIT"), list(_figures(found)))


def _figures(found: Stats) -> list[tuple[str, str, str]]:
    usage = found.usage
    cpu = "-" if usage.cpu_usec is None else f"{usage.cpu_usec / 1e6:.2f}s"
    pids = _count(found.processes if usage.pids is None else usage.pids)
    rows = [
        ("memory", size(usage.memory_bytes), size(usage.memory_limit_bytes)),
        ("memory, most", size(usage.memory_peak_bytes), size(usage.memory_limit_bytes)),
        ("cpu", cpu, "-"),
        ("processes", pids, _count(usage.pids_limit)),
        ("commands running", _count(found.running), "-"),
        ("shells", _count(found.shells), "-"),
        ("up", age(found.uptime_ms / 1000), "-"),
    ]
    crossed = found.network.rx_bytes + found.network.tx_bytes
    rows.append(("network", "none" if found.network.mode == "none" else size(crossed), "-"))
    rows += [(disk.path, size(disk.used_bytes), size(disk.total_bytes)) for disk in found.disk]
    return rows


def _count(figure: int | None) -> str:
    return "-" if figure is None else str(figure)


def configuration(state: State, *, origin: bool) -> None:
    from sandkasten.client.server.embedded import settings

    found = settings(state.here).origins()
    if state.json:
        shown: dict[str, Any] = {
            one.name: {"value": one.value, "origin": one.origin} if origin else one.value
            for one in found
        }
        put_json(shown)
    elif origin:
        put_table(
            ("SETTING", "VALUE", "ORIGIN"),
            [(one.name, _value(one.value), str(one.origin)) for one in found],
        )
    else:
        put_table(("SETTING", "VALUE"), [(one.name, _value(one.value)) for one in found])


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return ",".join(str(one) for one in value) or "-"
    return str(value)


def version(state: State) -> None:
    from sandkasten import __version__

    if state.json:
        put_json(
            {
                "version": __version__,
                "python": platform.python_version(),
                "platform": f"{platform.system().lower()}-{platform.machine()}",
            }
        )
    else:
        put(f"sandkasten {__version__}")
