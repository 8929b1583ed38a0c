"""Health of the daemon: whether it is alive and ready, its backends, and what its machine lacks.

A backend is probed at most once in `PROBE_FOR_S`, for all clients together.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sandkasten.errors import BackendUnavailable, Busy, SandkastenError
from sandkasten.model.sandbox.readiness import (
    Readiness,
    Requirement,
    unusable_plugin,
    with_requirements,
)
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call
    from sandkasten_server.api.server_context import Server

# A probe looks at the machine; a load balancer asks every second.
PROBE_FOR_S = 10.0
PROBE_TIMEOUT_S = 5.0


class Health(Answer):
    status: str
    version: str


class Degraded(Answer):
    """A backend that did not answer the last check. Its sessions are left alone."""

    backend: str
    reason: str = Field(description="Only for keys with the scope admin, and so is the hint.")
    hint: str


class Ready(Answer):
    status: str
    version: str
    backend: str
    degraded: list[Degraded]
    """Empty on a good day; the default backend is not among them, or the daemon is not ready."""


class RequirementLine(Answer):
    """Something that sandboxes need on the machine."""

    name: str
    ok: bool
    state: str
    remedy: str
    required: bool = Field(description="false: sandboxes work without it, and lack something.")


class UnenforcedLimit(Answer):
    """A limit that the machine cannot enforce."""

    limit: str
    reason: str
    remedy: str


class TierLine(Answer):
    """One kind of sandbox: a backend with a kind of root and a profile."""

    name: str
    backend: str
    ready: bool
    image: str
    profile: str
    reason: str
    remedy: str
    default: bool = Field(description="What a request gets that asks for nothing.")
    tried: bool = Field(description="Sandboxes were created; over HTTP none is.")
    warnings: list[RequirementLine]
    create_ms: float | None = Field(description="The median of a few creates, if tried.")


class FeaturesLine(Answer):
    """What a backend can do where everything that it needs is there."""

    summary: str = Field(description="What isolates.")
    sessions: bool = Field(description="false: it runs only one-shots.")
    networks: list[str] = Field(description="Of `none`, `full` and `rules`.")
    network_updates: bool = Field(description="Rules of a living sandbox can be changed.")
    secrets: bool
    limits: list[str] = Field(description="Enforced ones of `cpu`, `memory`, `pids`, `workspace`.")
    workspaces: bool = Field(description="Workspaces with a name.")
    mounts: bool = Field(description="Directories of the host.")
    packages: bool
    dev_profile: bool
    pause: bool
    snapshots: bool = Field(description="Of the files of a sandbox.")
    resize: bool = Field(description="Limits of a sandbox can be changed.")
    gpus: bool
    notes: list[str] = Field(description="Further differences.")


class BackendLine(Answer):
    """One backend of the daemon."""

    name: str
    default: bool = Field(description="What a request gets that nothing sends elsewhere.")
    isolation: str = Field(description="`standard`, `gvisor` or `unknown`.")
    ready: bool
    reason: str = Field(description="Why it is not ready; only for keys with the scope admin.")
    remedy: str = Field(description="Only for keys with the scope admin.")
    features: FeaturesLine
    unenforced: list[UnenforcedLimit] = Field(
        description="Limits that this machine, Docker Engine or cluster does not enforce."
    )
    labels: dict[str, str] = Field(description="Of a named Docker Engine.")
    sandboxes: int | None = Field(
        description="How many it has now; null for keys without the scope admin."
    )
    max_sandboxes: int | None = Field(description="Of a named Docker Engine; null: any number.")


class BackendList(Answer):
    backends: list[BackendLine]
    count: int


class Doctor(Answer):
    """What the machine of the daemon has and lacks, as `sandkasten doctor --json` prints it."""

    ready: bool = Field(description="Whether the default backend can create sandboxes.")
    reason: str
    remedy: str
    requirements: list[RequirementLine]
    unenforced: list[UnenforcedLimit]
    lacks: list[str] = Field(
        description="Features of the default backend that this machine does not have."
    )
    tiers: list[TierLine]
    backends: list[BackendLine]


async def healthz(call: Call) -> Response:
    return answer({"status": "ok", "version": call.server.facts.version})


async def readyz(call: Call) -> Response:
    server = call.server
    if server.draining:
        raise Busy(
            "the daemon is shutting down and accepts no new requests", hint="use another daemon"
        )
    # A reason can name files and addresses of the operator.
    connection = call.connection
    to_operator = server.doorkeeper.knows_operator(connection.headers, connection.scope)
    reason = await _not_ready(server)
    if reason is not None:
        message = f"no sandbox can be created on backend {server.engine.backend_name}"
        raise BackendUnavailable(
            f"{message}: {reason}" if to_operator else message,
            hint="run sandkasten doctor to see what is missing",
        )
    degraded = [
        {
            "backend": str(error.details.get("backend", "")),
            "reason": error.message if to_operator else "",
            "hint": error.hint if to_operator else "",
        }
        for error in server.engine.degraded()
    ]
    return answer(
        {
            "status": "ready",
            "version": server.facts.version,
            "backend": server.engine.backend_name,
            "degraded": degraded,
        }
    )


async def doctor(call: Call) -> Response:
    server = call.server

    # One examination at a time: it probes every backend.
    async def examine() -> Mapping[str, Any]:
        machine = with_requirements(
            await _readiness(server.engine.probe), await asyncio.to_thread(_unusable, server)
        )
        tiers = await server.engine.tiers(measure=False)
        return {**asdict(machine), "tiers": [asdict(tier) for tier in tiers]}

    report = await server.health.machine.get(server.clock, PROBE_FOR_S, examine)
    return answer({**report, "backends": await _backends(server)})


def _unusable(server: Server) -> list[Requirement]:
    """Return one line for each plugin that cannot be used."""
    return [unusable_plugin(problem) for problem in server.facts.plugin_problems()]


async def backends(call: Call) -> Response:
    reports = await _backends(call.server)
    if not call.principal.may("admin"):
        reports = [{**report, "reason": "", "remedy": "", "sandboxes": None} for report in reports]
    return answer({"backends": reports, "count": len(reports)})


async def _backends(server: Server) -> Sequence[Mapping[str, Any]]:
    """Return the reports. All clients together look at most once in a while."""

    async def survey() -> Sequence[Mapping[str, Any]]:
        return [asdict(report) for report in await server.engine.backends()]

    return await server.health.backends.get(server.clock, PROBE_FOR_S, survey)


async def _not_ready(server: Server) -> str | None:
    """Return one sentence; None if the last check found the backend ready."""

    async def probe() -> str | None:
        readiness = await _readiness(server.engine.probe_required)
        return None if readiness.ready else readiness.reason

    return await server.health.not_ready.get(server.clock, PROBE_FOR_S, probe)


async def _readiness(probe: Callable[[], Awaitable[Readiness]]) -> Readiness:
    """Return the answer of a probe; an error is a finding too."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await probe()
    except TimeoutError:
        return Readiness(ready=False, reason="it does not answer")
    except SandkastenError as exc:
        return Readiness(ready=False, reason=exc.message, remedy=exc.hint)


ROUTES = (
    Route(
        "GET",
        "/healthz",
        healthz,
        "Whether the daemon is alive",
        "system",
        scope=None,
        answer=Health,
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        "Whether the daemon can create sandboxes",
        "system",
        scope=None,
        answer=Ready,
        errors=(Busy, BackendUnavailable),
        description="503 if the default backend or the database of `store.url` does not answer. "
        "Live sessions go on then, so a load balancer should ask `/healthz`. Looks at most once "
        "in ten seconds.",
    ),
    Route(
        "GET",
        "/v1/doctor",
        doctor,
        "What the machine has and lacks for sandboxes",
        "system",
        scope="admin",
        answer=Doctor,
        description="The same as `sandkasten doctor --no-measure --json` on the machine of the "
        "daemon. Looks at most once in ten seconds, and creates no sandbox of a client.",
    ),
    Route(
        "GET",
        "/v1/backends",
        backends,
        "What each backend can and cannot do",
        "system",
        answer=BackendList,
        description="The default backend is first. Looks at most once in ten seconds.",
    ),
)
