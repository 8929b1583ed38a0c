"""The egress process of a sandbox: its files, its part of the launcher's plan, its control socket.

The launcher starts the process, which decides by rule about each connection and ends with its
sandbox. This module only writes its configuration, sends it commands and reads its records.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import Busy, SandboxLost
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.inspection import created_without_inspection
from sandkasten.model.sandbox.network_policy import (
    SILENT_HINT,
    NetworkCounts,
    NetworkPolicy,
    created_without_network,
)
from sandkasten.model.sandbox.network_rules import parse_rule
from sandkasten_runtime.linux.launcher import listen
from sandkasten_runtime.linux.processes import pin
from sandkasten_runtime.linux.state_layout import read_pid_file
from sandkasten_runtime.linux.trust_files import TRUST

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sandkasten.model.sandbox.inspection import Inspection
    from sandkasten.model.sandbox.network_policy import NetworkCeiling
    from sandkasten_runtime.linux.trust_files import Authority

CONTROL: Final = "egress.sock"
CONFIG: Final = "egress.json"
PID: Final = "egress.pid"
RECORDS: Final = ("egress.0", "egress.1")
_RESOLV: Final = "/etc/resolv.conf"
_MAX_ANSWER: Final = 1 << 16
READ_S: Final = 1.0
CHANGE_S: Final = 5.0
"""How long the process may take to answer. It needs less than a millisecond, but shares the
processor time of its sandbox. One that takes longer is cut off when its rules must change.
"""
_START_S: Final = 10.0
_DEATH_S: Final = 5.0
_MAX_RECORDS: Final = 4 << 20
# The kernel sets the time of a file to the last clock tick, up to 10 ms before the write.
_TICK_S: Final = 0.02
_ENDED: Final = "ended"


@dataclass(frozen=True, slots=True)
class Egress:
    """Socket and plan with which the launcher starts the process. Close it after the launch."""

    control: socket.socket
    plan: dict[str, object]

    def close(self) -> None:
        self.control.close()


def prepare(
    cell: Path,
    program: Path,
    policy: NetworkPolicy,
    ceiling: NetworkCeiling,
    user: int | None,
    *,
    device: bool = False,
) -> Egress:
    """Write the files of the process and return its part of the launcher's plan.

    `user` is the user id that it runs with; None: that of the daemon, an ordinary user.
    `device`: the sandbox has its own network stack (gVisor), which takes over a device.
    """
    (cell / CONFIG).write_text(json.dumps(config(policy, ceiling)))
    control = listen(cell / CONTROL)
    return Egress(
        control,
        {
            "program": os.fspath(program),
            "id": user,
            "control_fd": control.fileno(),
            "config": os.fspath(cell / CONFIG),
            "records": [os.fspath(cell / name) for name in RECORDS],
            "pid_file": os.fspath(cell / PID),
            "device": device,
        },
    )


def config(policy: NetworkPolicy, ceiling: NetworkCeiling) -> dict[str, object]:
    return {
        "rules": rules_json(policy),
        "reachable": list(ceiling.reachable),
        "servers": list(ceiling.servers) or name_servers(),
        "hosts": {name: list(addresses) for name, addresses in ceiling.hosts.items()},
        "limits": asdict(policy.limits),
        **_allowance_json(policy),
    }


def _allowance_json(policy: NetworkPolicy) -> dict[str, object]:
    return {} if policy.allowance is None else {"allowance": asdict(policy.allowance)}


def rules_json(policy: NetworkPolicy) -> dict[str, object]:
    return {
        "full": policy.full,
        "dry_run": policy.dry_run,
        "allow": [_rule_json(text) for text in policy.allow],
        "deny": [_rule_json(text) for text in policy.deny],
    }


def _rule_json(text: str) -> dict[str, object]:
    return asdict(parse_rule(text))


def _inspection_json(inspection: Inspection) -> dict[str, Any]:
    return {
        "all": inspection.all,
        "tls13": inspection.tls13,
        "except": [_rule_json(rule) for rule in inspection.uninspected],
        "secrets": [
            {
                "name": opened.secret.name,
                "placeholder": opened.secret.placeholder,
                "hosts": [_rule_json(host) for host in opened.secret.hosts],
                "header": opened.secret.header,
                "basic": opened.secret.basic,
                "query": opened.secret.query,
                "value": opened.value,
            }
            for opened in inspection.secrets
        ],
    }


def begin_inspection(cell: Path, authority: Authority, inspection: Inspection) -> None:
    """Send the authority and the secrets to a process that was just started. Blocking.

    They go over the socket, because no secret may be in a file, an argument or an environment.
    """
    asyncio.run(ask(cell, inspection_command(authority, inspection), _START_S))


def inspection_command(authority: Authority, inspection: Inspection) -> dict[str, object]:
    """Return the first command of an inspecting process. It contains the key and the values."""
    return {
        "inspect": {
            **_inspection_json(inspection),
            "certificate": base64.b64encode(authority.certificate).decode(),
            "key": base64.b64encode(authority.key).decode(),
            "roots": authority.roots,
        }
    }


def name_servers(file: str = _RESOLV) -> list[str]:
    """Return the name servers of this machine as `address:port`."""
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:
            words = [line.split() for line in lines]
    except OSError:
        return []
    addresses = [
        line[1].partition("%")[0] for line in words if line[:1] == ["nameserver"] and line[1:]
    ]
    return [f"[{address}]:53" if ":" in address else f"{address}:53" for address in addresses[:3]]


async def ask(cell: Path, command: dict[str, object], within_s: float) -> dict[str, Any]:
    """Send one command to the process and return its answer.

    Raise UnsupportedByBackend if the sandbox was created without a network, SandboxLost if the
    process has ended, and Busy if it does not answer in time. The process ignores a command whose
    sender is gone.
    """
    try:
        directory = os.open(cell, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as exc:
        raise created_without_network(cell.name) from exc
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{directory}/{CONTROL}", limit=_MAX_ANSWER
            )
            try:
                writer.write(json.dumps(command).encode() + b"\n")
                answer = json.loads(await reader.readline())
            finally:
                # Drop what the process has not read, so that it is not applied later.
                writer.transport.abort()
    except FileNotFoundError as exc:
        raise created_without_network(cell.name) from exc
    except (TimeoutError, BlockingIOError) as exc:
        # It has not even accepted the connections of earlier commands, or not read this one.
        raise silent(cell.name, within_s) from exc
    except (OSError, ValueError) as exc:
        raise SandboxLost(
            f"the network of sandbox {cell.name} does not answer", hint="create a new sandbox"
        ) from exc
    finally:
        os.close(directory)
    if not isinstance(answer, dict) or "error" in answer:
        raise SandboxLost(
            f"the network of sandbox {cell.name} refused a command", hint="create a new sandbox"
        )
    return answer


def silent(sandbox: str, within_s: float) -> Busy:
    """Return the error for a process that lives and does not answer."""
    return Busy(
        f"the network of sandbox {sandbox} did not answer within {within_s:g} s",
        hint=SILENT_HINT,
    )


def cut(cell: Path) -> bool:
    """Kill the process, which ends every connection for good, and return whether it is gone.

    It is not asked, so this works when it does not answer. Blocking.
    """
    identity = read_pid_file(cell / PID)
    if identity is None:
        return False
    pinned = pin(*identity)
    if pinned is None:
        return True
    try:
        pinned.kill()
        return pinned.wait(_DEATH_S)
    finally:
        pinned.close()


async def change(
    cell: Path,
    policy: NetworkPolicy,
    reachable: Sequence[str],
    inspection: Inspection | None = None,
) -> None:
    """Send new rules and limits, the networks that the operator opens, and a new inspection.

    Raise UnsupportedByBackend if the sandbox was created without inspection.
    """
    if inspection is not None and not await asyncio.to_thread((cell / TRUST).exists):
        raise created_without_inspection(cell.name)
    await ask(cell, change_command(policy, reachable, inspection), CHANGE_S)


def change_command(
    policy: NetworkPolicy, reachable: Sequence[str], inspection: Inspection | None = None
) -> dict[str, object]:
    command: dict[str, object] = {
        "rules": rules_json(policy),
        "limits": asdict(policy.limits),
        "reachable": list(reachable),
        **_allowance_json(policy),
    }
    if inspection is not None:
        command["inspect"] = _inspection_json(inspection)
    return command


async def counts(cell: Path) -> NetworkCounts:
    """Return the counters; after the end of the sandbox, those in its files."""
    try:
        return counts_in(await ask(cell, {}, READ_S))
    except SandboxLost:
        entries = await asyncio.to_thread(_lines, cell, 0, 0.0)
        if entries and entries[-1].get("event") == _ENDED:
            return counts_in(entries[-1])
        raise


def counts_in(answer: dict[str, Any]) -> NetworkCounts:
    return NetworkCounts(
        **{field.name: int(answer.get(field.name, 0)) for field in fields(NetworkCounts)}
    )


def records(cell: Path, after: int = 0, since: float = 0.0) -> list[dict[str, Any]]:
    """Return the records after a sequence number and a time, oldest first. Blocking, bounded."""
    return [record for record in _lines(cell, after, since) if record.get("event") != _ENDED]


def _lines(cell: Path, after: int, since: float) -> list[dict[str, Any]]:
    files: list[bytes] = []
    for name in RECORDS:
        try:
            with (cell / name).open("rb") as file:
                if os.fstat(file.fileno()).st_mtime < since - _TICK_S:
                    continue
                files.append(file.read(_MAX_RECORDS))
        except OSError:
            continue
    return _parsed(files, after, since)


def records_in(files: Iterable[bytes], after: int, since: float) -> list[dict[str, Any]]:
    """Return the records in the content of both files, as `records` does. Pure."""
    return [record for record in _parsed(files, after, since) if record.get("event") != _ENDED]


def final_counts_in(files: Iterable[bytes]) -> NetworkCounts | None:
    """Return what was counted until the sandbox ended; None if that was not written. Pure."""
    entries = _parsed(files, 0, 0.0)
    return counts_in(entries[-1]) if entries and entries[-1].get("event") == _ENDED else None


def _parsed(files: Iterable[bytes], after: int, since: float) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for data in files:
        # From the end, so that reading the newest records does not parse the others.
        for line in reversed(data.splitlines()):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the process has written only a part of this line
            if not isinstance(record, dict):
                continue
            if record.get("seq", 0) <= after or record.get("time", 0.0) < since:
                break
            result.append(record)
    return sorted(result, key=lambda record: record["seq"])
