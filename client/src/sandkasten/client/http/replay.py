"""Read the past of a session from a daemon: its commands, and the recordings and output kept."""

from __future__ import annotations

import asyncio
import base64
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import quote

from sandkasten.client.http.connection import Connection, HttpRequest, pieces
from sandkasten.client.http.json_values import record, records
from sandkasten.client.server.daemon_or_embedded import find_server
from sandkasten.errors import PayloadTooLarge, SandkastenError, UnsupportedByBackend
from sandkasten.model.journal_rows import SessionEnd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkasten.client.server.daemon_or_embedded import ServerAddress

_MOST_COMMANDS: Final = 1000
# A daemon bounds its recordings; this bounds what another server sends.
_MAX_RECORDING: Final = 256 << 20
_STALL_S: Final = 60.0


class SessionReplay:
    def __init__(self, connection: Connection, sandbox_id: str) -> None:
        self._connection = connection
        self._path = f"/v1/sessions/{quote(sandbox_id, safe='')}"

    async def commands(self) -> list[dict[str, Any]]:
        """Return the newest 1,000 commands of the session, oldest first."""
        query = {"limit": str(_MOST_COMMANDS)}
        order = HttpRequest("GET", f"{self._path}/execs", query=query, repeatable=True)
        rows = records(await self._connection.ask(order), "execs")
        return sorted(rows, key=lambda row: float(row.get("started_at") or 0))

    async def recordings(self) -> set[str]:
        """Return the ids of the commands that have a recording."""
        order = HttpRequest("GET", f"{self._path}/recordings", repeatable=True)
        reply = record(await self._connection.ask(order))
        return {str(row.get("exec_id")) for row in records(reply.get("recordings"), "recordings")}

    async def recording(self, exec_id: str) -> bytes:
        """Return a recording as asciicast v2. Raise FileNotFound if there is none."""
        path = f"{self._path}/recordings/{quote(exec_id, safe='')}"
        data = bytearray()
        async with self._connection.stream(HttpRequest("GET", path, repeatable=True)) as answer:
            async for piece in pieces(self._connection, answer, "a recording was read", _STALL_S):
                data += piece
                if len(data) > _MAX_RECORDING:
                    raise PayloadTooLarge(
                        f"the recording of {exec_id} is larger than {_MAX_RECORDING} bytes",
                        hint=f"download it with another client: GET {path}",
                        limit=_MAX_RECORDING,
                    )
        return bytes(data)

    async def output(self, exec_id: str) -> bytes | None:
        """Return the output that the sandbox keeps of a command; None if it keeps none."""
        path = f"{self._path}/execs/{quote(exec_id, safe='')}/output"
        with suppress(SandkastenError):
            reply = record(await self._connection.ask(HttpRequest("GET", path, repeatable=True)))
            return b"".join(_data(chunk) for chunk in records(reply.get("chunks"), "chunks"))
        return None


async def ended_sandboxes(place: ServerAddress) -> list[str]:
    """Return the newest ended sandboxes of the tenant, up to a thousand for each kind of end."""
    ids: list[str] = []
    async with _daemon(place) as connection:
        for status in get_args(SessionEnd):
            order = HttpRequest("GET", "/v1/sessions", query={"status": status}, repeatable=True)
            rows = records(await connection.ask(order), "sessions")
            ids += [str(row.get("id")) for row in rows]
    return ids


@asynccontextmanager
async def replay_of(place: ServerAddress, sandbox_id: str) -> AsyncIterator[SessionReplay]:
    """Open the records of one session. UnsupportedByBackend without a daemon."""
    async with _daemon(place) as connection:
        yield SessionReplay(connection, sandbox_id)


@asynccontextmanager
async def _daemon(place: ServerAddress) -> AsyncIterator[Connection]:
    place = await asyncio.to_thread(find_server, place)
    if place.url is None:
        raise UnsupportedByBackend(
            "only a daemon keeps the commands of a session, and none is running",
            hint="start one: sandkasten serve",
        )
    connection = Connection(place.url, place.api_key, place.tenant)
    try:
        yield connection
    finally:
        await connection.aclose()


def _data(chunk: dict[str, Any]) -> bytes:
    if "data_b64" in chunk:
        return base64.b64decode(str(chunk["data_b64"]))
    return str(chunk.get("text", "")).encode("utf-8", "surrogateescape")
