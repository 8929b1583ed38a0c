"""Recordings of what commands and terminals of a session wrote, also after its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.errors import FileNotFound, SessionExpired, SessionNotFound
from sandkasten.model.ids import exec_id
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.response.exec_rows import owned_session
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Route

if TYPE_CHECKING:
    from sandkasten_server.api.request.http_call import Call

_CAST: Final = "application/x-asciicast"


class RecordingEntry(Answer):
    exec_id: str
    size_bytes: int
    at: str
    at_unix: float


class RecordingList(Answer):
    recordings: list[RecordingEntry]


async def listed(call: Call) -> Response:
    the_id = await owned_session(call)
    recordings = call.engine.trail.recordings
    infos = [] if recordings is None else await recordings.list(the_id)
    return answer({"recordings": [to_json(info) for info in infos]})


async def read(call: Call) -> Response:
    the_id, eid = await owned_session(call), exec_id(call.path("eid"))
    recordings = call.engine.trail.recordings
    recording = None if recordings is None else await recordings.read(the_id, eid)
    if recording is None:
        raise FileNotFound(
            f"command {eid} has no recording",
            hint="recording.enabled turns recordings on, for later commands",
        )
    # An attachment: what a sandbox wrote is never a page of the daemon.
    headers = {
        "Content-Disposition": f'attachment; filename="{eid}.cast"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(recording, media_type=_CAST, headers=headers)


ROUTES = (
    Route(
        "GET",
        "/v1/sessions/{id}/recordings",
        listed,
        "List the recordings of a session",
        "execs",
        answer=RecordingList,
        errors=(SessionNotFound, SessionExpired),
    ),
    Route(
        "GET",
        "/v1/sessions/{id}/recordings/{eid}",
        read,
        "Read a recording",
        "execs",
        gives=(_CAST,),
        errors=(SessionNotFound, SessionExpired, FileNotFound),
        description="asciicast v2, as asciinema plays it: output and sizes of a terminal with "
        "their times.",
    ),
)
