"""The sandboxes of a daemon: one method, one request.

Uses the routes of the public contract. What only the machine itself can report (what its kernel
offers, a sweep) is UnsupportedByBackend here.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sandkasten.client.http import session_json
from sandkasten.client.http.code import HttpCode
from sandkasten.client.http.connection import (
    ANSWER_S,
    Connection,
    HttpRequest,
    reading,
    session_path,
    settle,
)
from sandkasten.client.http.error_responses import body_error
from sandkasten.client.http.event_streams import COMMAND, events, follow, parsed
from sandkasten.client.http.files import HttpFiles
from sandkasten.client.http.images import HttpImages
from sandkasten.client.http.json_values import record, records, value_of, values_of
from sandkasten.client.http.previews import HttpPreviews, open_port
from sandkasten.client.http.secrets import HttpSecrets
from sandkasten.client.http.snapshots import HttpSnapshots
from sandkasten.client.http.terminal import open_terminal
from sandkasten.client.http.workspaces import HttpWorkspaces
from sandkasten.client.transfer import large_stdin
from sandkasten.errors import BackendUnavailable, SandkastenError, UnsupportedByBackend
from sandkasten.model.backends.backend_features import BackendReport
from sandkasten.model.sandbox.network_policy import NetworkAttempt, NetworkStatus
from sandkasten.model.sandbox.readiness import Readiness, Tier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from sandkasten.client.server.transport import PortTransport, TerminalTransport
    from sandkasten.model.commands.exec_values import (
        Chunk,
        ChunkReader,
        ExecPast,
        ExecRequest,
        ExecResult,
    )
    from sandkasten.model.sandbox.oneshot_values import RunRequest, RunResult
    from sandkasten.model.sandbox.sandbox_values import (
        CreateRequest,
        Forked,
        ForkRequest,
        Info,
        Process,
        Stats,
        Swept,
        UpdateRequest,
    )
    from sandkasten.model.sandbox.usage import Usage

# The longest a command may run by the public contract; the daemon ends it, not we.
LONGEST_EXEC_S: Final = 86_400.0
# A sandbox, and an image that must be fetched for it first.
CREATE_S: Final = 1800.0
SLACK_S: Final = 60.0
NEXT_CURSOR: Final = "X-Next-Cursor"
_RUN: Final = "/v1/run"
_EVENTS: Final[Mapping[str, str]] = {"Accept": "text/event-stream"}


class HttpTransport:
    """Belongs to one event loop."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        tenant: str | None = None,
        *,
        discovered: bool = False,
    ) -> None:
        self.connection = Connection(url, api_key, tenant, discovered=discovered)
        self.files = HttpFiles(self.connection)
        self.images = HttpImages(self.connection)
        self.workspaces = HttpWorkspaces(self.connection)
        self.snapshots = HttpSnapshots(self.connection)
        self.network = HttpNetwork(self.connection)
        self.code = HttpCode(self.connection)
        self.secrets = HttpSecrets(self.connection)
        self.previews = HttpPreviews(self.connection)

    # ---- sandboxes

    async def create(self, request: CreateRequest) -> Info:
        """Create it. A caller that is cancelled leaves no sandbox whose id it does not know."""
        creating = asyncio.ensure_future(self._create(request))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            await self._uncreate(creating)
            raise

    async def _uncreate(self, creating: asyncio.Future[Info]) -> None:
        await settle(creating)
        if not creating.cancelled() and creating.exception() is None:
            info = creating.result()
            if info.created:
                with suppress(SandkastenError):
                    await self.destroy(info.id)

    async def _create(self, request: CreateRequest) -> Info:
        order = HttpRequest(
            "POST",
            "/v1/sessions",
            session_json.create_body(request),
            # Under a key the second request finds what the first one made.
            repeatable=request.session_key is not None,
            answer_s=CREATE_S,
        )
        return session_json.info_of(await self.connection.ask(order))

    async def fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        """Create copies. A caller that is cancelled leaves none whose id it does not know."""
        forking = asyncio.ensure_future(self._fork(sandbox_id, request))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            await settle(forking)
            if not forking.cancelled() and forking.exception() is None:
                for result in forking.result().results:
                    if not isinstance(result, SandkastenError):
                        with suppress(SandkastenError):
                            await self.destroy(result.id)
            raise

    async def _fork(self, sandbox_id: str, request: ForkRequest) -> Forked:
        body = session_json.fork_body(request)
        order = HttpRequest("POST", session_path(sandbox_id, "fork"), body, answer_s=CREATE_S)
        return session_json.forked_of(await self.connection.ask(order))

    async def get(self, sandbox_id: str) -> Info:
        return session_json.info_of(await self._get(session_path(sandbox_id)))

    async def list(
        self, *, all: bool = False, all_tenants: bool = False, usage: bool = False
    ) -> Sequence[Info]:
        """Return the sandboxes; `all` has no effect: a daemon does not list its warm pool."""
        infos: list[Info] = []
        whose = {"all_tenants": "true"} if all_tenants else {}
        if usage:
            whose["usage"] = "true"
        query: dict[str, str] = dict(whose)
        while True:
            order = HttpRequest("GET", "/v1/sessions", query=query, repeatable=True)
            page, headers = await self.connection.ask_page(order)
            infos += [session_json.info_of(row) for row in records(page, "sessions")]
            cursor = headers.get(NEXT_CURSOR)
            if cursor is None or not page:
                return infos
            query = {**whose, "cursor": cursor}

    async def destroy(self, sandbox_id: str) -> None:
        order = HttpRequest(
            "DELETE", session_path(sandbox_id), repeatable=True, answer_s=ANSWER_S * 2
        )
        await self.connection.ask(order)

    async def update(self, sandbox_id: str, request: UpdateRequest) -> Info:
        # The same values again change nothing.
        order = HttpRequest(
            "PATCH", session_path(sandbox_id), session_json.update_body(request), repeatable=True
        )
        return session_json.info_of(await self.connection.ask(order))

    async def pause(self, sandbox_id: str) -> Info:
        return session_json.info_of(await self._post(session_path(sandbox_id, "pause")))

    async def resume(self, sandbox_id: str) -> Info:
        return session_json.info_of(await self._post(session_path(sandbox_id, "resume")))

    async def reclaim(self, sandbox_id: str) -> int:
        return session_json.reclaimed_of(await self._post(session_path(sandbox_id, "reclaim")))

    async def usage(self, sandbox_id: str) -> Usage:
        reply = await self._get(session_path(sandbox_id, "stats"), {"quiet": "true"})
        return session_json.usage_of(reply)

    async def stats(self, sandbox_id: str) -> Stats:
        return session_json.stats_of(await self._get(session_path(sandbox_id, "stats")))

    async def processes(self, sandbox_id: str) -> Sequence[Process]:
        return session_json.processes_of(await self._get(session_path(sandbox_id, "processes")))

    # ---- commands

    async def exec(self, sandbox_id: str, request: ExecRequest) -> ExecResult:
        if large_stdin.is_large(request):
            return await large_stdin.run(self, sandbox_id, request)
        order = self._exec(sandbox_id, "exec", request, _time_of(request))
        return session_json.exec_result_of(await self.connection.ask(order))

    def exec_stream(
        self, sandbox_id: str, request: ExecRequest
    ) -> AsyncIterator[Chunk | ExecResult]:
        if large_stdin.is_large(request):
            return large_stdin.stream(self, sandbox_id, request)
        # Asked again under the same key, the daemon shows the same command from its beginning.
        order = self._exec(sandbox_id, "exec/stream", request, None)
        return follow(self.connection, lambda _seen: order, COMMAND)

    async def exec_start(self, sandbox_id: str, request: ExecRequest) -> ExecResult:
        if large_stdin.is_large(request):
            return await large_stdin.start(self, sandbox_id, request)
        order = self._exec(sandbox_id, "exec", request, ANSWER_S, background=True)
        return session_json.exec_result_of(await self.connection.ask(order))

    async def exec_get(self, sandbox_id: str, exec_id: str, *, wait_s: float = 0) -> ExecResult:
        order = HttpRequest(
            "GET",
            _exec_path(sandbox_id, exec_id),
            query={"wait_seconds": f"{wait_s:g}"} if wait_s else {},
            repeatable=True,
            answer_s=wait_s + SLACK_S,
        )
        return session_json.exec_result_of(await self.connection.ask(order))

    def exec_output(
        self, sandbox_id: str, exec_id: str, *, since_seq: int = 0, follow: bool = False
    ) -> AsyncIterator[Chunk | ExecResult]:
        if follow:
            return self._followed(sandbox_id, exec_id, since_seq)
        return self._kept(sandbox_id, exec_id, since_seq)

    def _followed(
        self, sandbox_id: str, exec_id: str, since_seq: int
    ) -> AsyncIterator[Chunk | ExecResult]:
        path = _exec_path(sandbox_id, exec_id, "output")

        def after(last_seq: int) -> HttpRequest:
            query = {"since_seq": str(max(since_seq, last_seq))}
            return HttpRequest(
                "GET", path, query=query, headers=_EVENTS, repeatable=True, answer_s=None
            )

        return follow(self.connection, after, COMMAND)

    async def _kept(
        self, sandbox_id: str, exec_id: str, since_seq: int
    ) -> AsyncIterator[Chunk | ExecResult]:
        path = _exec_path(sandbox_id, exec_id, "output")
        while True:
            reply = await self._get(path, {"since_seq": str(since_seq)})
            page = [session_json.chunk_of(row) for row in records(reply.get("chunks"), "chunks")]
            for chunk in page:
                yield chunk
            result = session_json.exec_result_of(reply)
            # A page may be full before the kept output ends.
            if not page or page[-1].seq >= result.last_seq:
                yield result
                return
            since_seq = page[-1].seq

    async def exec_signal(self, sandbox_id: str, exec_id: str, signal: int) -> None:
        await self._post(_exec_path(sandbox_id, exec_id, "signal"), {"signal": signal})

    async def shell_close(self, sandbox_id: str, name: str) -> None:
        path = session_path(sandbox_id, f"shells/{quote(name, safe='')}")
        await self.connection.ask(HttpRequest("DELETE", path))

    async def exec_stdin(
        self, sandbox_id: str, exec_id: str, data: bytes, *, close: bool = False
    ) -> None:
        body = {**session_json.input_fields("data", data), "close": close}
        # A program reads its stdin when it likes.
        order = HttpRequest(
            "POST", _exec_path(sandbox_id, exec_id, "stdin"), body, answer_s=LONGEST_EXEC_S
        )
        await self.connection.ask(order)

    async def exec_stdin_piece(self, sandbox_id: str, exec_id: str, data: bytes) -> None:
        """Write bytes to a command's input as they are, which is shorter than JSON."""
        order = HttpRequest(
            "POST",
            _exec_path(sandbox_id, exec_id, "stdin"),
            data=data,
            headers={"Content-Type": "application/octet-stream"},
            answer_s=LONGEST_EXEC_S,
        )
        await self.connection.ask(order)

    async def execs(self, sandbox_id: str) -> Sequence[ExecPast]:
        return session_json.execs_of(await self._get(session_path(sandbox_id, "execs")))

    def terminal(
        self,
        sandbox_id: str,
        *,
        command: tuple[str, ...] | None = None,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AbstractAsyncContextManager[TerminalTransport]:
        return open_terminal(
            self.connection,
            session_path(sandbox_id, "pty"),
            command=command,
            rows=rows,
            cols=cols,
            env=env,
            cwd=cwd,
        )

    def connect(self, sandbox_id: str, port: int) -> AbstractAsyncContextManager[PortTransport]:
        return open_port(self.connection, sandbox_id, port)

    async def run(self, request: RunRequest, *, show: ChunkReader | None = None) -> RunResult:
        body = session_json.run_body(request)
        if show is None:
            order = HttpRequest("POST", _RUN, body, answer_s=_run_time_of(request))
            return session_json.run_result_of(await self.connection.ask(order))
        order = HttpRequest("POST", _RUN, body, headers=_EVENTS, answer_s=None)
        async with self.connection.stream(order) as answer:
            source = events(answer)
            while True:
                # Not around `show`, whose failures are the caller's.
                async with reading(self.connection, "the code ran"):
                    event = await anext(source, None)
                if event is None:
                    raise BackendUnavailable(
                        "the connection was lost while the code ran",
                        hint="the daemon ended the run; start it again",
                    )
                if event.name == "chunk":
                    await show(session_json.chunk_of(parsed(event)))
                elif event.name == "done":
                    return session_json.run_result_of(parsed(event))
                elif event.name == "error":
                    raise body_error(parsed(event))

    # ---- the machine of the daemon

    async def probe(self, backend: str | None = None) -> Readiness:
        """Return what its default backend reports about itself. Requires a key with the scope
        admin.
        """
        if backend is not None:
            raise _only_there("what a backend needs that is not its default", _DOCTOR)
        return value_of(Readiness, await self._doctor())

    async def tiers(self, *, measure: bool = True) -> Sequence[Tier]:
        """Return its tiers. No sandbox is created to measure one."""
        reply = record(await self._doctor())
        return values_of(Tier, reply.get("tiers"), "tiers")

    async def backends(self) -> Sequence[BackendReport]:
        """Return what each of its backends can do. Only a key with the scope admin gets reasons."""
        reply = await self.connection.ask(
            HttpRequest("GET", "/v1/backends", repeatable=True, answer_s=_DOCTOR_S)
        )
        return values_of(BackendReport, record(reply).get("backends"), "backends")

    async def sweep(self) -> Swept:
        raise _only_there("for a sweep", "the daemon does it by itself, every minute")

    async def aclose(self) -> None:
        await self.connection.aclose()

    # ---- below

    async def _doctor(self) -> Any:
        return await self.connection.ask(
            HttpRequest("GET", "/v1/doctor", repeatable=True, answer_s=_DOCTOR_S)
        )

    async def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return await self.connection.ask(
            HttpRequest("GET", path, query=query or {}, repeatable=True)
        )

    async def _post(self, path: str, body: object = None) -> Any:
        return await self.connection.ask(HttpRequest("POST", path, {} if body is None else body))

    def _exec(
        self,
        sandbox_id: str,
        verb: str,
        request: ExecRequest,
        answer_s: float | None,
        *,
        background: bool = False,
    ) -> HttpRequest:
        # One for every command, so that a broken connection can be asked again and runs nothing
        # twice.
        key = request.idempotency_key or f"auto-{os.urandom(12).hex()}"
        body = session_json.exec_body(request, key)
        if background:
            body["background"] = True
        return HttpRequest(
            "POST", session_path(sandbox_id, verb), body, repeatable=True, answer_s=answer_s
        )


# A backend that hangs is given up after a minute.
_DOCTOR_S: Final = 120.0
_DOCTOR: Final = "sandkasten doctor; for this machine: sandkasten --embedded doctor"


def _exec_path(sandbox_id: str, exec_id: str, verb: str = "") -> str:
    base = session_path(sandbox_id, f"execs/{quote(exec_id, safe='')}")
    return f"{base}/{verb}" if verb else base


def _time_of(request: ExecRequest) -> float:
    return (
        LONGEST_EXEC_S if request.timeout_seconds is None else request.timeout_seconds
    ) + SLACK_S


def _run_time_of(request: RunRequest) -> float:
    return CREATE_S + (
        LONGEST_EXEC_S if request.timeout_seconds is None else request.timeout_seconds
    )


def _only_there(what: str, how: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"a daemon does not report {what} over HTTP", hint=f"on its machine: {how}"
    )


class HttpNetwork:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def status(self, sandbox_id: str) -> NetworkStatus:
        order = HttpRequest("GET", session_path(sandbox_id, "network"), repeatable=True)
        return value_of(NetworkStatus, await self._connection.ask(order), "network")

    async def log(self, sandbox_id: str, *, since_seq: int = 0) -> Sequence[NetworkAttempt]:
        order = HttpRequest(
            "GET",
            session_path(sandbox_id, "network/log"),
            query={"since_seq": str(since_seq)},
            repeatable=True,
        )
        return values_of(NetworkAttempt, await self._connection.ask(order), "network log")
