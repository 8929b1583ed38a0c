"""Usage, processes and network of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from sandkasten.errors import Busy, Conflict
from sandkasten.model.json_codec import to_json
from sandkasten.model.sandbox.sandbox_values import NetworkUsage
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.sse import begun, event
from sandkasten_server.api.route import EVENTS, JSON, Answer, Query, Route
from sandkasten_server.api.routes.execs import GONE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from sandkasten.model.sandbox.sandbox_values import Process, Stats
    from sandkasten.model.sandbox.usage import Usage
    from sandkasten_server.api.request.http_call import Call


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

    mode: str = Field(description="none, full or rules.")
    rules: int = Field(description="Rules that allow or deny.")
    connections: int = Field(description="Open ones.")
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


class NetworkStatusAnswer(Answer):
    network: str | dict[str, Any]
    open: int
    opened: int
    refused: int
    bytes_in: int
    bytes_out: int
    failed: int = Field(
        description="Allowed, but the name could not be looked up or the server not be reached."
    )
    would_refuse: int = Field(description="Let pass by a dry run alone.")
    suggested: list[str] = Field(
        description="A rule for each host and port that it tried to reach and that a rule can open."
    )
    not_public: list[str] = Field(
        description="What else it tried to reach: only the operator can open it, with "
        "`network.reachable`."
    )


class NetworkAttemptAnswer(Answer):
    seq: int
    at: str
    at_unix: float
    connection: int
    event: str
    host: str | None
    address: str | None
    port: int
    rule: str
    allowed: bool
    bytes_in: int | None
    bytes_out: int | None
    ms: int | None
    reason: str | None


class LogQuery(Query):
    since_seq: int = Field(0, ge=0, le=2**53, description="Only records after this number.")
    follow: bool = Field(
        False, description="Answer with server-sent events `attempt` as they happen."
    )


async def stats(call: Call) -> Response:
    query = call.query(StatsQuery)
    the_id = await call.session()
    if query.quiet:
        unknown = dict.fromkeys(("uptime_ms", "processes", "running", "shells", "connections"))
        usage = usage_fields(await call.engine.usage(the_id))
        return answer({**usage, **unknown, "disk": [], "network": to_json(NetworkUsage())})
    return answer(stats_fields(await call.engine.stats(the_id)))


async def processes(call: Call) -> Response:
    rows = await call.engine.processes(await call.session())
    return answer([_process(process) for process in rows])


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


def _process(process: Process) -> dict[str, object]:
    cmdline = [_text(part) for part in process.cmdline]
    return {**to_json(process), "name": _text(process.name), "cmdline": cmdline}


def _text(name: str) -> str:
    """Replace lone surrogates: a process can have any bytes as its name."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


async def network(call: Call) -> Response:
    return answer(to_json(await call.engine.network.status(await call.session())))


async def network_log(call: Call) -> Response:
    query = call.query(LogQuery)
    the_id = await call.session()
    if query.follow:
        return await begun(_events(call, the_id, query.since_seq), call)
    attempts = await call.engine.network.log(the_id, since_seq=query.since_seq)
    return answer([to_json(attempt) for attempt in attempts])


async def _events(call: Call, the_id: str, since_seq: int) -> AsyncIterator[bytes]:
    async for attempt in call.engine.network.follow(the_id, since_seq=since_seq):
        yield event("attempt", to_json(attempt), attempt.seq)


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
    Route(
        "GET",
        "/v1/sessions/{id}/network",
        network,
        "Network rules and counters of a session",
        "sessions",
        answer=NetworkStatusAnswer,
        errors=BUSY,
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/network/log",
        network_log,
        "What a session tried to reach",
        "sessions",
        query=LogQuery,
        answer=NetworkAttemptAnswer,
        array=True,
        gives=(JSON, EVENTS),
        errors=BUSY,
    ),
)
