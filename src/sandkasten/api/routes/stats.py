"""Usage and processes of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from sandkasten.api.response.json_response import answer
from sandkasten.api.route import Answer, Query, Route
from sandkasten.api.routes.execs import GONE
from sandkasten.errors import Busy, Conflict
from sandkasten.model.json_codec import to_json
from sandkasten.model.sandbox.sandbox_values import NetworkUsage

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.api.request.http_call import Call
    from sandkasten.model.sandbox.sandbox_values import Process, Stats
    from sandkasten.model.sandbox.usage import Usage


class StatsQuery(Query):
    quiet: bool = Field(
        False,
        description="Only the kernel's counters, without asking the session: not an activity, "
        "extends nothing.",
    )


class DiskAnswer(Answer):
    path: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    inodes: int | None
    inodes_free: int | None


class NetworkAnswer(Answer):
    """Network traffic. With mode `none` there is no network and no traffic."""

    mode: str
    rx_bytes: int
    tx_bytes: int


class StatsAnswer(Answer):
    """null: the kernel does not count it here, or the session did not answer."""

    memory_bytes: int | None
    memory_limit: int | None
    cpu_usage_usec: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    cpu_usec: int | None
    pids: int | None
    pids_limit: int | None
    pids_refused: int | None
    oom_kills: int | None
    uptime_ms: int | None
    processes: int | None
    running: int | None
    shells: int | None
    connections: int | None
    disk: list[DiskAnswer]
    network: NetworkAnswer


class ProcessAnswer(Answer):
    pid: int
    ppid: int
    uid: int
    state: str
    name: str
    cmdline: list[str]
    rss_bytes: int
    cpu_ms: int
    started_at: float
    threads: int
    exec_id: str | None


async def stats(call: Call) -> Response:
    query = call.query(StatsQuery)
    the_id = await call.session()
    if query.quiet:
        told = dict.fromkeys(("uptime_ms", "processes", "running", "shells", "connections"))
        usage = usage_fields(await call.engine.usage(the_id))
        return answer({**usage, **told, "disk": [], "network": to_json(NetworkUsage())})
    return answer(stats_fields(await call.engine.stats(the_id)))


async def processes(call: Call) -> Response:
    found = await call.engine.processes(await call.session())
    return answer([_process(one) for one in found])


def usage_fields(usage: Usage) -> dict[str, object]:
    return {
        **to_json(usage),
        "memory_limit": usage.memory_limit_bytes,
        "cpu_usage_usec": usage.cpu_usec,
    }


def stats_fields(stats: Stats) -> dict[str, object]:
    fields = to_json(stats)
    del fields["usage"]
    return {**usage_fields(stats.usage), **fields}


def _process(one: Process) -> dict[str, object]:
    cmdline = [_text(part) for part in one.cmdline]
    return {**to_json(one), "name": _text(one.name), "cmdline": cmdline}


def _text(name: str) -> str:
    """Replace lone surrogates: a process can have any bytes as its name."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


BUSY = (*GONE, Conflict, Busy)

ROUTES = (
    Route(
        "GET",
        "/v1/sessions/{id}/stats",
        stats,
        "Resource usage of a session",
        "sessions",
        query=StatsQuery,
        answer=StatsAnswer,
        errors=BUSY,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/processes",
        processes,
        "Processes of a session",
        "sessions",
        answer=ProcessAnswer,
        array=True,
        errors=BUSY,
    ),
)
