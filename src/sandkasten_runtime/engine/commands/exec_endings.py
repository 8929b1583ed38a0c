"""The end of a command: why it ended, what the network refused, and its event."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sandkasten.errors import Busy, SandkastenError, UnsupportedByBackend
from sandkasten.model.commands.exec_values import ExecNetwork
from sandkasten.model.commands.verdict import needs_figures, verdict
from sandkasten.model.sandbox.network_policy import attempt
from sandkasten.model.sandbox.network_refusals import no_network_hint, refusals, suggested
from sandkasten.ports import Networked
from sandkasten_runtime.engine.commands.exec_results import GRACE_S, ending_of
from sandkasten_runtime.wire.messages import decode_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.commands.exec_values import ExecResult, Why
    from sandkasten.ports import EventSink
    from sandkasten_runtime.engine.handles import ExecStart, Handle, Handles
    from sandkasten_runtime.wire.messages import ExecReply

# A file system with less than this free cannot take one more block of most writers.
_FULL_BELOW_BYTES = 64 * 1024
# Both clocks are read to the millisecond, one of them perhaps by another kernel.
_CLOCKS_DIFFER_S = 0.002


async def explain_end(
    handles: Handles, handle: Handle, reply: ExecReply, began: ExecStart | None = None
) -> Why | None:
    """Return why the command ended; None while it runs, or if there is nothing to explain.

    Reads counters only for an end that they could explain.
    """
    if not reply.ended:
        return None
    ending = ending_of(reply)
    began = began or handle.began.get(reply.exec_id)
    limits = handle.record.limits
    timeout_s = began.timeout_s if began is not None else None
    if not needs_figures(ending):
        return verdict(ending, limits, timeout_s)
    before = began.before if began is not None else handle.counters
    try:
        handle.counters = after = await handle.cell.usage()
        full = await _full_file_system(handles, handle)
    except SandkastenError:
        # The counters only explain; without them the result is still the result.
        return verdict(ending, limits, timeout_s)
    return verdict(ending, limits, timeout_s, before=before, after=after, full=full)


async def with_network(
    handle: Handle, reply: ExecReply, result: ExecResult, reachable: Sequence[str]
) -> ExecResult:
    """Return the result of a command with what the network refused while it ran, or a dry run let
    pass. `reachable`: addresses that the operator has opened.
    """
    if not reply.ended:
        return result
    began = reply.started_ms / 1000
    ended = began + reply.duration_ms / 1000
    network = await refused_between(handle, began, ended, reachable)
    if network is None and result.exit_code:
        network = missing_network(handle, result.exit_code, result.output)
    return result if network is None else replace(result, network=network)


def missing_network(handle: Handle, exit_code: int, output: bytes) -> ExecNetwork | None:
    """Return the hint for what probably failed because the sandbox has no network; else None.

    Called after `refused_between`, which knows whether it was created with one.
    """
    if handle.networked is not False:
        return None
    hint = no_network_hint(handle.record.network, exit_code, output)
    return ExecNetwork(hint=hint) if hint else None


async def refused_between(
    handle: Handle, began: float, ended: float, reachable: Sequence[str]
) -> ExecNetwork | None:
    """Return what the network refused between two Unix times, or a dry run let pass; else None."""
    # The cheap check first: most sandboxes have no network, which is known after one command.
    if handle.networked is False and handle.record.network == "none":
        return None
    if not isinstance(handle.cell, Networked):
        handle.networked = False
        return None
    if handle.record.network == "none" and not await _created_with_network(handle, handle.cell):
        return None
    first, last = began - _CLOCKS_DIFFER_S, ended + _CLOCKS_DIFFER_S
    attempts = [attempt(record) for record in await handle.cell.network_records(0, first)]
    attempts = [entry for entry in attempts if entry.at <= last]
    network = handle.record.network
    dry_run = isinstance(network, dict) and network.get("dry_run", False)
    result = ExecNetwork(refusals(attempts, reachable), suggested(attempts) if dry_run else ())
    return result if result.refused or result.suggested else None


async def _created_with_network(handle: Handle, cell: Networked) -> bool:
    if handle.networked is None:
        try:
            await cell.network_counts()
        except UnsupportedByBackend:
            handle.networked = False
        except Busy:
            # It has one, which must not be asked again after every command.
            handle.networked = True
        except SandkastenError:
            return False
        else:
            handle.networked = True
    return handle.networked


def emit_finished(events: EventSink | None, sandbox_id: str, result: ExecResult) -> None:
    """Emit the event of a command that ended, whether or not a caller waited for it."""
    if events is not None:
        events.emit(
            "exec.finished",
            {
                "sandbox": sandbox_id,
                "exec": result.exec_id,
                "status": result.status,
                "exit_code": result.exit_code,
                "seconds": result.duration_ms / 1000,
                "stdout_bytes": result.stdout_bytes,
                "stderr_bytes": result.stderr_bytes,
            },
        )


async def _full_file_system(handles: Handles, handle: Handle) -> str | None:
    channel = await handles.channel(handle)
    stats = decode_stats(await channel.call("stats", timeout_s=GRACE_S))
    for path, disk in stats.disk.items():
        if disk.total and (
            disk.free < min(_FULL_BELOW_BYTES, disk.total) or (disk.inodes and not disk.inodes_free)
        ):
            return path
    return None
