"""Output of `ls`, `ps`, `stats`, `inspect` and `config show`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.output import age, put, put_json, put_sandboxes, put_table, size, tell
from sandkasten_server.cli.sandbox_names import resolve
from sandkasten_server.cli.state import go

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.client.results import PastResult
    from sandkasten.client.server.transport import Transport
    from sandkasten.model.sandbox.sandbox_values import Info, Process, Stats
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten_server.cli.state import State

# A sandbox that does not respond must not delay the list.
STATS_TIMEOUT_S: Final = 2.0


def timestamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")


def described(info: Info) -> dict[str, Any]:
    """Return the create response of the public contract, with further fields."""
    from sandkasten.model.sandbox.limit_names import public_limits
    from sandkasten.model.sandbox.sandbox_values import public_fields

    return {
        **public_fields(info),
        "workspace_mode": _mode(info),
        "snapshot": info.snapshot,
        "mounts": [asdict(mount) for mount in info.mounts],
        "created_at": timestamp(info.created_at),
        "expires_at": timestamp(info.expires_at),
        "profile": info.profile,
        "network": info.network,
        "labels": dict(info.labels),
        "limits": public_limits(info.limits),
        "unenforced": [asdict(entry) for entry in info.unenforced],
        "warnings": list(info.warnings),
    }


def _mode(info: Info) -> str | None:
    if info.workspace_id is None:
        return None
    return "shared" if info.workspace_shared else "exclusive"


async def sandboxes(
    state: State, *, everything: bool = False, quiet: bool = False, all_tenants: bool = False
) -> None:
    """List sandboxes; with `quiet` only their ids."""
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    listed = await transport.list(all=everything, all_tenants=all_tenants)
    infos = sorted(listed, key=lambda info: info.created_at)
    if quiet:
        if state.json:
            put_json([info.id for info in infos])
        else:
            for info in infos:
                put(info.id)
        return
    owners = [info.tenant if all_tenants else None for info in infos]
    transports = [await connect(state.place_of(owner)) for owner in owners]
    usages = await asyncio.gather(*map(_usage, transports, infos))
    used = [None if usage is None else usage.memory_bytes for usage in usages]
    if state.json:
        put_json(
            [
                {
                    **described(info),
                    **({"tenant": info.tenant} if all_tenants else {}),
                    "memory_bytes": memory,
                }
                for info, memory in zip(infos, used, strict=True)
            ]
        )
        return
    put_sandboxes(infos, used, time.time(), all_tenants=all_tenants)


async def inspect(state: State, start: str) -> None:
    """Print everything known about a sandbox and its commands, as JSON."""
    from sandkasten.client.sandbox import AsyncSandbox

    box = await AsyncSandbox.attach(await resolve(state, start), **state.where)
    info = box.known or await box.info()
    commands: list[dict[str, Any]] | None = None
    if info.status == "running":
        commands = [_command(entry) for entry in await box.execs()]
    shown = {**described(info), "idle_timeout_seconds": info.idle_timeout_s, "commands": commands}
    put(json.dumps(shown, indent=2))


def _command(entry: PastResult) -> dict[str, Any]:
    return {
        "exec_id": entry.exec_id,
        "kind": entry.kind,
        "command": entry.command,
        "command_bytes": entry.command_bytes,
        "command_sha256": entry.command_sha256,
        "language": entry.language,
        "context_id": entry.context_id,
        "key_id": entry.key_id,
        "agent": entry.agent,
        "run_id": entry.run_id,
        "status": entry.status,
        "error_name": entry.error_name,
        "exit_code": entry.exit_code,
        "signal": entry.signal,
        "shell": entry.shell,
        "started_at": timestamp(entry.started_at) if entry.started_at else None,
        "duration_ms": entry.duration_ms,
        "stdout_bytes": entry.stdout_bytes,
        "stderr_bytes": entry.stderr_bytes,
        "refused": [f"{refusal.host}:{refusal.port}" for refusal in entry.refused],
    }


async def _usages(transport: Transport, infos: Sequence[Info]) -> list[Usage | None]:
    return await asyncio.gather(*(_usage(transport, info) for info in infos))


async def _usage(transport: Transport, info: Info) -> Usage | None:
    if info.status not in ("running", "paused"):
        return None
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            # Counted by the kernel: asking the sandbox would count as activity.
            return await transport.usage(info.id)
    except (SandkastenError, TimeoutError):
        return None


async def processes(state: State, start: str) -> None:
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    listed = await transport.processes(await resolve(state, start))
    if state.json:
        put_json([_process(process) for process in listed])
        return
    now = time.time()
    put_table(
        ("PID", "PPID", "UID", "STATE", "MEMORY", "CPU", "AGE", "COMMAND"),
        [
            (
                str(process.pid),
                str(process.ppid),
                str(process.uid),
                process.state,
                size(process.rss_bytes),
                f"{process.cpu_ms / 1000:.2f}s",
                age(now - process.started_at),
                " ".join(process.cmdline) or f"[{process.name}]",
            )
            for process in listed
        ],
    )


def _process(process: Process) -> dict[str, Any]:
    return {
        **asdict(process),
        "cmdline": list(process.cmdline),
        "started_at": timestamp(process.started_at),
    }


async def stats(state: State, start: str | None, *, follow: bool, interval_s: float) -> None:
    """Show the usage of one sandbox in detail, or of all in a table; with `follow` repeatedly."""
    from sandkasten.client.server.server_pool import connect

    transport = await connect(state.place)
    only = None if start is None else await resolve(state, start)
    if only is not None and not follow:
        figures = await transport.stats(only)
        if state.json:
            put_json(asdict(figures))
        else:
            put_table(("WHAT", "NOW", "LIMIT"), list(_figures(figures)))
        return
    before: dict[str, _Seen] = {}
    while True:
        infos = sorted(await transport.list(), key=lambda info: info.created_at)
        if only is not None:
            infos = [await transport.get(only)]
        usages = await _usages(transport, infos)
        now = {
            info.id: _Seen(usage, time.monotonic())
            for info, usage in zip(infos, usages, strict=True)
            if usage is not None
        }
        _show_usages(state, infos, now, before)
        if not follow:
            return
        before = now
        await asyncio.sleep(interval_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    usage: Usage
    at_s: float


def _show_usages(
    state: State, infos: Sequence[Info], now: Mapping[str, _Seen], before: Mapping[str, _Seen]
) -> None:
    if state.json:
        # One line for each look, so that a reader can follow.
        put(
            json.dumps(
                [
                    {"id": info.id, "usage": asdict(now[info.id].usage) if info.id in now else None}
                    for info in infos
                ]
            )
        )
        sys.stdout.flush()
        return
    rows = []
    for info in infos:
        look = now.get(info.id)
        usage = None if look is None else look.usage
        rows.append(
            (
                info.id,
                info.status,
                _busy(look, before.get(info.id)),
                "-" if usage is None else size(usage.memory_bytes),
                "-" if usage is None else size(usage.memory_limit_bytes),
                "-" if usage is None else _count(usage.pids),
                "-" if usage is None else _count(usage.pids_limit),
            )
        )
    if before and sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[J")
    put_table(("ID", "STATE", "CPU", "MEMORY", "LIMIT", "PROCESSES", "LIMIT"), rows)
    sys.stdout.flush()


def _busy(look: _Seen | None, before: _Seen | None) -> str:
    """Format CPU usage: per cent since the look before, at first the seconds in total."""
    if look is None or look.usage.cpu_usec is None:
        return "-"
    if before is None or before.usage.cpu_usec is None or look.at_s <= before.at_s:
        return f"{look.usage.cpu_usec / 1e6:.2f}s"
    spent_s = (look.usage.cpu_usec - before.usage.cpu_usec) / 1e6
    return f"{100 * spent_s / (look.at_s - before.at_s):.1f}%"


def _figures(figures: Stats) -> list[tuple[str, str, str]]:
    usage = figures.usage
    cpu = "-" if usage.cpu_usec is None else f"{usage.cpu_usec / 1e6:.2f}s"
    pids = _count(figures.processes if usage.pids is None else usage.pids)
    rows = [
        ("memory", size(usage.memory_bytes), size(usage.memory_limit_bytes)),
        ("memory, most", size(usage.memory_peak_bytes), size(usage.memory_limit_bytes)),
        ("cpu", cpu, "-"),
        ("processes", pids, _count(usage.pids_limit)),
        ("commands running", _count(figures.running), "-"),
        ("shells", _count(figures.shells), "-"),
        ("up", age(figures.uptime_ms / 1000), "-"),
    ]
    network = figures.network
    counted = f"{network.rules} rule{'' if network.rules == 1 else 's'}"
    rows.append(("network", counted if network.rules else network.mode, "-"))
    if network.mode != "none":
        rows += [
            ("network connections", _count(network.connections), "-"),
            ("network received", size(network.rx_bytes), "-"),
            ("network sent", size(network.tx_bytes), "-"),
        ]
    rows += [(disk.path, size(disk.used_bytes), size(disk.total_bytes)) for disk in figures.disk]
    return rows


def _count(figure: int | None) -> str:
    return "-" if figure is None else str(figure)


def configuration(state: State, *, origin: bool, daemon: bool, config: str | None) -> None:
    """Print the settings of this process, which may read the file `config`, or of the daemon."""
    if daemon and config is not None:
        raise UsageError(
            "--config and --daemon exclude each other",
            hint="pass one of them; a daemon has read its own file",
        )
    entries = go(_daemon_settings(state)) if daemon else _own_settings(state, config)
    if state.json:
        shown: dict[str, Any] = {
            setting["name"]: {"value": setting["value"], "origin": setting["origin"]}
            if origin
            else setting["value"]
            for setting in entries
        }
        put_json(shown)
    elif origin:
        put_table(
            ("SETTING", "VALUE", "ORIGIN"),
            [
                (setting["name"], _value(setting["value"]), str(setting["origin"]))
                for setting in entries
            ],
        )
    else:
        put_table(
            ("SETTING", "VALUE"),
            [(setting["name"], _value(setting["value"])) for setting in entries],
        )


def _own_settings(state: State, config: str | None) -> list[dict[str, Any]]:
    from sandkasten.client.server.embedded import settings

    # Which daemon reads the file that is given is not known.
    url = state.place.url if config is None else None
    entries = [asdict(setting) for setting in settings(state.here, config).origins()]
    if url is not None and not state.json:
        tell("note", f"the daemon at {url} may have others: --daemon shows them")
    return entries


async def _daemon_settings(state: State) -> list[dict[str, Any]]:
    from sandkasten.client.http.admin import HttpBooks
    from sandkasten.client.server.admin_transport import books_of

    if state.place.url is None:
        raise InvalidRequest(
            "--daemon requires a daemon",
            hint="start one (sandkasten serve), name one with --url, or leave --daemon out",
        )
    async with books_of(state.place) as books:
        assert isinstance(books, HttpBooks)
        return await books.settings()


def _value(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value) or "-"
    return str(value)
