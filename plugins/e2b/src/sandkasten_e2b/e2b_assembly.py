"""The routes of E2B's protocol, below one prefix, and what they keep while a daemon serves."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import create_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.disk.small_file import read_small_file
from sandkasten.errors import InvalidRequest, NotFound, StoreUnusable
from sandkasten_e2b.code_interpreter_routes import CodeInterpreterRoutes
from sandkasten_e2b.connect_codec import STREAM
from sandkasten_e2b.e2b_dialect import CALLS, CONTROL, FILES, STREAMS, gone_port
from sandkasten_e2b.e2b_domain import PREFIX
from sandkasten_e2b.envd_access import EnvdAccess
from sandkasten_e2b.envd_tokens import EnvdTokens
from sandkasten_e2b.file_routes import BYTES, FORM, FileRoutes
from sandkasten_e2b.file_watchers import FileWatchers
from sandkasten_e2b.filesystem_routes import FilesystemRoutes
from sandkasten_e2b.pause_schedule import open_schedule
from sandkasten_e2b.process_routes import ProcessRoutes
from sandkasten_e2b.sandbox_routes import SandboxRoutes
from sandkasten_e2b.snapshot_routes import SnapshotRoutes
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.route import JSON, Handler, Method, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from starlette.responses import Response

    from sandkasten_e2b.pause_schedule import PauseSchedule
    from sandkasten_runtime.engine.engine import Engine
    from sandkasten_server.api.previews.preview_access import Previews
    from sandkasten_server.api.request.http_call import Call

PAUSES_FILE: Final = "e2b-pauses.json"
_KEY_FILE: Final = "e2b.key"
_MIN_KEY: Final = 32
_TAG: Final = "e2b"
# Parts of E2B's API for which the engine has no counterpart.
_NOT_HERE: Final = frozenset({"templates", "volumes"})


def read_key(data_dir: Path) -> bytes:
    """Return the key of the access tokens, which is made once in the data directory."""
    path = data_dir / _KEY_FILE
    try:
        create_file(path, secrets.token_hex(32).encode())
        key = (read_small_file(path) or b"").strip()
    except OSError as exc:
        raise disk_error("read the key of E2B's access tokens", exc, StoreUnusable) from exc
    if len(key) < _MIN_KEY:
        raise StoreUnusable(
            f"{path} is not a key: it is shorter than {_MIN_KEY} bytes",
            hint="remove it, and a new one is made; older access tokens are then invalid",
        )
    return key


@asynccontextmanager
async def open_e2b(
    key: bytes,
    aliases: Mapping[str, str],
    domain: str | None = None,
    *,
    engine: Engine | None = None,
    pauses_file: Path | None = None,
    previews: Previews | None = None,
    public_ports: bool = False,
    profile: str = "hardened",
) -> AsyncIterator[Sequence[Route]]:
    """Yield the routes. Watchers of clients end with the block.

    With `engine`, sandboxes pause at their times; `pauses_file` keeps these. `previews` then admit
    traffic tokens and resume paused sandboxes; with `public_ports` they are public by default.
    `profile` is that of new sandboxes.
    """
    tokens, clock = EnvdTokens(key), SystemClock()
    async with open_schedule(pauses_file, engine, clock) as pauses:
        sandboxes = SandboxRoutes(
            tokens, aliases, domain, pauses, public_ports=public_ports, profile=profile
        )
        if previews is not None and engine is not None:
            previews.is_traffic_token = tokens.is_valid_for_traffic
            previews.resume = partial(pauses.admit, engine, clock)
            previews.gone = gone_port if domain is not None else None
        async with _routes(tokens, sandboxes, pauses) as routes:
            yield routes


@asynccontextmanager
async def _routes(
    tokens: EnvdTokens, sandboxes: SandboxRoutes, pauses: PauseSchedule
) -> AsyncIterator[Sequence[Route]]:
    access = EnvdAccess(tokens, pauses)
    watchers = FileWatchers()
    try:
        yield (
            *_control(sandboxes),
            *_snapshots(SnapshotRoutes(sandboxes)),
            *_processes(ProcessRoutes(access)),
            *_filesystem(FilesystemRoutes(access, watchers)),
            *_files(FileRoutes(access)),
            *_code(CodeInterpreterRoutes(access)),
            Route(
                "ANY", PREFIX + "/{rest:path}", _unknown, "Unknown", _TAG, scope=None,
                dialect=CONTROL,
            ),
        )  # fmt: skip
    finally:
        await watchers.aclose()


def _control(routes: SandboxRoutes) -> list[Route]:
    path = "/sandboxes/{id}"
    return [
        _key("POST", "/sandboxes", routes.create, "session.create"),
        _key("POST", "/v2/sandboxes", routes.create, "session.create"),
        _key("GET", "/sandboxes", routes.listed),
        _key("GET", "/v2/sandboxes", routes.listed),
        _key("GET", path, routes.describe),
        _key("DELETE", path, routes.destroy, "session.destroy"),
        _key("POST", f"{path}/connect", routes.connect, "session.update"),
        _key("POST", f"/v2{path}/connect", routes.connect, "session.update"),
        _key("POST", f"{path}/resume", routes.resume, "session.resume"),
        _key("POST", f"{path}/pause", routes.pause, "session.pause"),
        _key("POST", f"{path}/timeout", routes.set_timeout, "session.update"),
        _key("POST", f"{path}/refreshes", routes.refresh, "session.update"),
        _key("GET", f"{path}/metrics", routes.metrics),
        _key("PUT", f"{path}/network", routes.change_network, "session.update"),
        _key("GET", "/templates/aliases/{alias:path}", routes.template_alias),
    ]


def _snapshots(routes: SnapshotRoutes) -> list[Route]:
    path = "/sandboxes/{id}"
    return [
        _key("POST", f"{path}/snapshots", routes.create, "session.snapshot"),
        _key("GET", "/snapshots", routes.listed),
        _key("DELETE", "/templates/{template:path}", routes.remove, "snapshot.delete"),
        _key("POST", f"{path}/fork", routes.fork, "session.fork"),
    ]


def _processes(routes: ProcessRoutes) -> list[Route]:
    service = "/process.Process"
    return [
        _call(f"{service}/List", routes.listed),
        _stream(f"{service}/Start", routes.start),
        _stream(f"{service}/Connect", routes.connect),
        _call(f"{service}/SendInput", routes.send_input),
        _stream(f"{service}/StreamInput", routes.stream_input),
        _call(f"{service}/SendSignal", routes.send_signal),
        _call(f"{service}/CloseStdin", routes.close_stdin),
        _call(f"{service}/Update", routes.update),
    ]


def _filesystem(routes: FilesystemRoutes) -> list[Route]:
    service = "/filesystem.Filesystem"
    return [
        _call(f"{service}/Stat", routes.stat),
        _call(f"{service}/MakeDir", routes.make_dir),
        _call(f"{service}/Move", routes.move),
        _call(f"{service}/ListDir", routes.list_dir),
        _call(f"{service}/Remove", routes.remove),
        _stream(f"{service}/WatchDir", routes.watch_dir),
        _call(f"{service}/CreateWatcher", routes.create_watcher),
        _call(f"{service}/GetWatcherEvents", routes.watcher_events),
        _call(f"{service}/RemoveWatcher", routes.remove_watcher),
    ]


def _files(routes: FileRoutes) -> list[Route]:
    file_routes = [
        _plain("GET", "/health", routes.health),
        _plain("GET", "/files", routes.read),
        _plain("POST", "/files", routes.write, FORM, BYTES),
    ]
    # The SDKs put the path of a signed URL at the root of the server.
    return [*file_routes, *(replace(route, path="/files") for route in file_routes[1:])]


def _code(routes: CodeInterpreterRoutes) -> list[Route]:
    return [
        _plain("POST", "/execute", routes.execute, JSON),
        _plain("GET", "/contexts", routes.contexts),
        _plain("POST", "/contexts", routes.create, JSON),
        _plain("DELETE", "/contexts/{cid}", routes.remove),
        _plain("POST", "/contexts/{cid}/restart", routes.restart),
    ]


def _key(method: Method, path: str, run: Handler, action: str | None = None) -> Route:
    """Return a route of the control plane, which needs a key."""
    return Route(
        method, PREFIX + path, run, path, _TAG, dialect=CONTROL, action=action,
        reads_body=method in ("POST", "PUT"), body_required=method not in ("POST", "PUT"),
    )  # fmt: skip


def _plain(method: Method, path: str, run: Handler, *takes: str) -> Route:
    """Return a route of one sandbox that is ordinary HTTP."""
    return Route(
        method, PREFIX + path, run, path, _TAG, scope=None, dialect=FILES,
        reads_body=bool(takes), takes=takes or (JSON,),
    )  # fmt: skip


def _call(path: str, run: Handler) -> Route:
    return Route(
        "POST", PREFIX + path, run, path, _TAG, scope=None, dialect=CALLS, reads_body=True,
        takes=(JSON,),
    )  # fmt: skip


def _stream(path: str, run: Handler) -> Route:
    return Route(
        "POST", PREFIX + path, run, path, _TAG, scope=None, dialect=STREAMS, reads_body=True,
        takes=(STREAM,),
    )  # fmt: skip


async def _unknown(call: Call) -> Response:
    path = call.connection.scope["path"][:200]
    hint = "the guide about E2B lists what is supported"
    for feature in path.split("/"):
        if feature in _NOT_HERE:
            # The SDKs show a 404 as a sandbox that does not exist.
            raise InvalidRequest(f"{feature}: not supported by this server", hint=hint)
    raise NotFound(f"{path} is not supported", hint=hint)
