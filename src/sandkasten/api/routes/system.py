"""Health, readiness, metrics, settings and the OpenAPI document of the daemon."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field
from starlette.responses import Response

from sandkasten.api.response.docs_page import CSP, page
from sandkasten.api.response.json_pieces import as_json
from sandkasten.api.response.json_response import answer
from sandkasten.api.response.openapi_document import document
from sandkasten.api.route import JSON, Answer, Route
from sandkasten.errors import BackendUnavailable, Busy, NotFound, SandkastenError
from sandkasten.model.sandbox.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from sandkasten.api.request.http_call import Call
    from sandkasten.api.server_context import Server

# A probe looks at the machine; a load balancer asks every second.
PROBE_FOR_S = 10.0
PROBE_TIMEOUT_S = 5.0


class Health(Answer):
    status: str
    version: str


class Degraded(Answer):
    """A backend that did not answer the last check. Its sessions are left alone."""

    backend: str
    reason: str
    hint: str


class Ready(Answer):
    status: str
    version: str
    backend: str
    degraded: list[Degraded]
    """Empty on a good day; the default backend is not among them, or the daemon is not ready."""


class Version(Answer):
    version: str
    api: str
    backend: str


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


class SettingAnswer(Answer):
    name: str
    value: str | int | float | bool | list[str] | None = Field(description="Secrets are masked.")
    origin: str = Field(description="A flag, a variable, a file or the default.")


class Settings(Answer):
    settings: list[SettingAnswer]


async def healthz(call: Call) -> Response:
    return answer({"status": "ok", "version": call.server.version})


async def readyz(call: Call) -> Response:
    server = call.server
    if server.draining:
        raise Busy(
            "the daemon is shutting down and accepts no new requests", hint="use another daemon"
        )
    reason = await _not_ready(server)
    if reason is not None:
        raise BackendUnavailable(
            f"no sandbox can be created on backend {server.engine.backend_name}: {reason}",
            hint="run sandkasten doctor to see what is missing",
        )
    degraded = [
        {"backend": str(one.details.get("backend", "")), "reason": one.message, "hint": one.hint}
        for one in server.engine.degraded()
    ]
    return answer(
        {
            "status": "ready",
            "version": server.version,
            "backend": server.engine.backend_name,
            "degraded": degraded,
        }
    )


async def doctor(call: Call) -> Response:
    server = call.server
    now = server.clock.boottime()
    # One examination at a time: it probes every backend.
    async with server.examining:
        if server.examined is None or now - server.examined[0] > PROBE_FOR_S:
            machine = await _readiness(server.engine.probe)
            tiers = await server.engine.tiers(measure=False)
            found = {**asdict(machine), "tiers": [asdict(one) for one in tiers]}
            server.examined = (server.clock.boottime(), found)
    return answer({**server.examined[1], "backends": await _backends(server)})


async def backends(call: Call) -> Response:
    found = await _backends(call.server)
    if not call.principal.may("admin"):
        # A reason can name files and addresses of the operator.
        found = [{**one, "reason": "", "remedy": "", "sandboxes": None} for one in found]
    return answer({"backends": found, "count": len(found)})


async def _backends(server: Server) -> Sequence[Mapping[str, Any]]:
    """Return the reports. All clients together look at most once in a while."""
    now = server.clock.boottime()
    async with server.surveying:
        if server.surveyed is None or now - server.surveyed[0] > PROBE_FOR_S:
            found = [asdict(one) for one in await server.engine.backends()]
            server.surveyed = (server.clock.boottime(), found)
    return server.surveyed[1]


async def version(call: Call) -> Response:
    return answer(
        {"version": call.server.version, "api": "v1", "backend": call.engine.backend_name}
    )


async def settings(call: Call) -> Response:
    return answer({"settings": list(call.server.settings)})


async def metrics(call: Call) -> Response:
    if call.server.metrics is None:
        raise NotFound("metrics are turned off", hint="turn them on with telemetry.metrics")
    census, network = await call.engine.census(), await call.engine.network.totals()
    text, kind = call.server.metrics.render(census, network)
    return Response(text, media_type=kind)


async def openapi(call: Call) -> Response:
    made = await _documents(call.server.version)
    return Response(made.openapi, media_type=JSON)


async def docs(call: Call) -> Response:
    made = await _documents(call.server.version)
    return Response(
        made.page,
        media_type="text/html",
        headers={
            "content-security-policy": CSP,
            "referrer-policy": "no-referrer",
            "x-frame-options": "DENY",
        },
    )


class _Documents(NamedTuple):
    openapi: bytes
    page: bytes


_made: dict[str, _Documents] = {}
_making = threading.Lock()


async def _documents(version: str) -> _Documents:
    """Return the documents, made once: they take long, and are served without a key."""
    found = _made.get(version)
    return await asyncio.to_thread(_make, version) if found is None else found


def _make(version: str) -> _Documents:
    # The table lists this module's routes too, so it is not there yet when this one is read.
    from sandkasten.api.routes.route_table import ALL

    with _making:
        if version not in _made:
            described = document(ALL, version)
            _made[version] = _Documents(as_json(described), page(described))
    return _made[version]


async def _not_ready(server: Server) -> str | None:
    """Return one sentence; None if the last check found the backend ready."""
    now = server.clock.boottime()
    async with server.probing:
        if server.probed is None or now - server.probed[0] > PROBE_FOR_S:
            server.probed = (now, await _probed(server))
    return server.probed[1]


async def _probed(server: Server) -> str | None:
    found = await _readiness(server.engine.probe_required)
    return None if found.ready else found.reason


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
        "/metrics",
        metrics,
        "Metrics for Prometheus",
        "system",
        scope="metrics",
        gives=("text/plain",),
        errors=(NotFound,),
    ),
    Route("GET", "/openapi.json", openapi, "This document", "system", scope=None, gives=(JSON,)),
    Route(
        "GET", "/docs", docs, "This document as a page", "system", scope=None, gives=("text/html",)
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
    Route(
        "GET",
        "/v1/settings",
        settings,
        "Settings of the daemon",
        "system",
        scope="admin",
        answer=Settings,
    ),
    Route(
        "GET", "/v1/version", version, "Version of the daemon", "system", scope=None, answer=Version
    ),
)
