"""Snapshots and forks of sessions: new sessions that start with the files of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from sandkasten.errors import (
    Conflict,
    QuotaExceeded,
    SandkastenError,
    SnapshotDamaged,
    SnapshotNotFound,
    UnsupportedByBackend,
)
from sandkasten.model.json_codec import to_json
from sandkasten.model.sandbox.sandbox_values import ForkRequest
from sandkasten.model.sandbox.snapshot import SnapshotRequest
from sandkasten_server.api.error_responses import body_of as error_body
from sandkasten_server.api.request.body_models import body_of
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.response.openapi_document import ErrorBody
from sandkasten_server.api.route import Answer, Route
from sandkasten_server.api.routes.sessions import Session, session_fields
from sandkasten_server.api.routes.stats import BUSY

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call

SnapshotBody = body_of("SnapshotBody", SnapshotRequest)
ForkBody = body_of("ForkBody", ForkRequest, without=("key_id",))


class NotKeptAnswer(Answer):
    commands: list[str] = Field(description="Ids of commands that were running or queued.")
    contexts: list[str] = Field(description="Ids of code contexts.")
    processes: int = Field(description="Other processes, such as background jobs.")
    shells: list[str] = Field(description="Shells whose state could not be read.")
    mounts: list[str] = Field(description="Host mounts.")
    paths: list[str] = Field(description="Directories that could not be read.")


class OneSnapshot(Answer):
    id: str
    name: str | None
    parent: str | None = Field(description="The snapshot that its session was created from.")
    sandbox_id: str
    created_at: str
    created_at_unix: float
    image: str
    image_id: str
    backend: str
    profile: str
    hostname: str | None
    limits: dict[str, int | float]
    network: str | dict[str, Any]
    labels: dict[str, str]
    env_names: list[str]
    shells: list[str]
    size_bytes: int
    method: str = Field(description="`reflink`: it shares blocks; `extents`: a copy.")
    frozen_ms: float = Field(description="For how long the session was stopped.")
    not_kept: NotKeptAnswer


class AllSnapshots(Answer):
    snapshots: list[OneSnapshot]


class ForkResult(Answer):
    """One of the two is null."""

    session: Session | None
    error: ErrorBody | None


class Forked(Answer):
    results: list[ForkResult] = Field(description="One for each copy that was requested.")
    not_kept: NotKeptAnswer


class Done(Answer):
    ok: bool


async def create(call: Call) -> Response:
    the_id = await call.session()
    request = SnapshotRequest(**vars(await call.body(SnapshotBody)))
    snapshot = await call.engine.snapshots.create(the_id, request, call.principal.quota)
    return answer(to_json(snapshot), 201)


async def fork(call: Call) -> Response:
    the_id = await call.session()
    request = ForkRequest(**vars(await call.body(ForkBody)), key_id=call.principal.key_id)
    # Without its response a client does not know the ids, so one that leaves ends the creation.
    forked = await call.while_there(call.engine.fork(the_id, request, call.principal.quota))
    results: list[dict[str, object]] = []
    for result in forked.results:
        if isinstance(result, SandkastenError):
            results.append({"session": None, "error": error_body(result, call.request_id)})
        else:
            results.append({"session": session_fields(result), "error": None})
    ids = [result.id for result in forked.results if not isinstance(result, SandkastenError)]
    call.recorded["created"] = " ".join(ids)
    return answer({"results": results, "not_kept": to_json(forked.not_kept)}, 201)


async def listed(call: Call) -> Response:
    snapshots = await call.engine.snapshots.list(tenant=call.principal.tenant)
    return answer({"snapshots": [to_json(snapshot) for snapshot in snapshots]})


async def described(call: Call) -> Response:
    snapshot = await call.engine.snapshots.get(call.path("id"), tenant=call.principal.tenant)
    return answer(to_json(snapshot))


async def remove(call: Call) -> Response:
    await call.engine.snapshots.remove(call.path("id"), tenant=call.principal.tenant)
    return answer({"ok": True})


_TAG: Final = "snapshots"
_HERE = "/v1/snapshots/{id}"
_GONE = (SnapshotNotFound, SnapshotDamaged, UnsupportedByBackend)

ROUTES = (
    Route(
        "POST", "/v1/sessions/{id}/snapshots", create, "Take a snapshot of a session", _TAG,
        body=SnapshotBody, body_required=False, answer=OneSnapshot, status=201,
        errors=(*BUSY, Conflict, QuotaExceeded, SnapshotDamaged, UnsupportedByBackend),
        description="Keeps the files of the session, as they are at one moment, with its image, "
        "limits, environment, network, labels and shells. `not_kept` lists what is not kept.",
    ),
    Route(
        "POST", "/v1/sessions/{id}/fork", fork, "Create copies of a session", _TAG,
        body=ForkBody, body_required=False, answer=Forked, status=201,
        errors=(*BUSY, Conflict, QuotaExceeded, SnapshotDamaged, UnsupportedByBackend),
        description="New sessions with its files, all from one moment, and with its image, limits, "
        "environment, times, network, labels and shells where the request names nothing. The "
        "result of a copy that cannot be created is an `error`; the others are not affected. If "
        "the client disconnects, all copies are removed.",
    ),
    Route(
        "GET", "/v1/snapshots", listed, "List snapshots, oldest first", _TAG,
        answer=AllSnapshots, errors=(UnsupportedByBackend,),
    ),
    Route(
        "GET", _HERE, described, "Describe a snapshot", _TAG, answer=OneSnapshot, errors=_GONE,
    ),
    Route(
        "DELETE", _HERE, remove, "Remove a snapshot", _TAG, answer=Done, errors=_GONE,
        description="Sessions that were created from it keep their files.",
    ),
)  # fmt: skip
