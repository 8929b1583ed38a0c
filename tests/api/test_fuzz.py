"""Requests generated from the OpenAPI document are answered as the document says.

Schemathesis generates valid and invalid requests for every route. None may end in a 5xx other than
those that say the daemon is temporarily unable.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.daemon.agent_services import agent_service
from sandkasten.daemon.backend_registry import prepare_data_dir
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.persistent_stores import Books, open_books
from sandkasten.engine.clock import SystemClock
from tests.api.daemon_in_process import serving
from tests.api.openapi_check import check, described
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schemathesis import Case

    from sandkasten.engine.engine import Engine
    from sandkasten.ports.agent_ports import Agents

pytestmark = [pytest.mark.slow, pytest.mark.promise("P37")]

# They last as long as the client stays, or speak to other machines.
LEFT_OUT = {"/fs/watch", "/images/pull", "/images/import", "/pty"}
CANNOT_NOW = {502, 503, 504, 507}
ALL: list[Any] = [*schemathesis.openapi.from_dict(described()).get_all_operations()]
PATHS = {one.ok().path for one in ALL}
OPERATIONS = [
    one.ok()
    for one in ALL
    # What is served below /v1 as well is the same handler.
    if one.ok().path.removeprefix("/v1") == one.ok().path
    or one.ok().path.removeprefix("/v1") not in PATHS
    if not any(one.ok().path.endswith(path) for path in LEFT_OUT)
]


class Target:
    """A daemon with one session, in a separate thread."""

    def __init__(self, data_dir: Path) -> None:
        self.url = ""
        self.session = ""
        self.exec = ""
        self.run = ""
        self._data_dir = data_dir
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Target:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        here = settings(ServerAddress(str(self._data_dir), "unisolated"))
        prepare_data_dir(self._data_dir)
        async with open_books(here, SystemClock()) as books:
            engine = await open_engine(here, journal=books.journal)
            async with agent_service(here, engine, books.files, recovers=True) as agents:
                await self._served(engine, books, agents)
            await engine.aclose()

    async def _served(self, engine: Engine, books: Books, agents: Agents) -> None:
        assert self._end is not None
        async with serving(
            engine, journal=books.journal, keys=books.keys, files=books.files, agents=agents
        ) as daemon:
            self.url = daemon.url
            self.session = await daemon.session(lifetime_seconds=14_400)
            ran = await daemon.ask("POST", f"/v1/sessions/{self.session}/exec", {"cmd": "echo a"})
            self.exec = ran.json["exec_id"]
            flow = {"source": "id: tiny\nsteps: [{id: done, type: end}]\n"}
            self.run = (await daemon.ask("POST", "/workflow-runs", flow)).json["run_id"]
            self._ready.set()
            await self._end.wait()
            for info in await engine.list(all=True):
                await engine.destroy(info.id)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Target(tmp_path_factory.mktemp("fuzz") / "data") as one:
        yield one


@pytest.fixture(scope="module")
def http() -> Iterator[requests.Session]:
    with requests.Session() as one:
        yield one


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow_loop
def test_no_request_generated_from_the_openapi_document_breaks_the_daemon(
    target: Target, http: requests.Session, full_size: bool
) -> None:
    each = 1600 if full_size else 8
    seen: Counter[int] = Counter()
    failures: list[str] = []
    for operation in OPERATIONS:
        kinds = [_strategy(operation, mode) for mode in GenerationMode]

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=each,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=st.one_of(kinds))
        def one(case: Case) -> None:
            status, wrong = _tried(case, target, http)
            seen[status] += 1
            if wrong:
                failures.append(wrong)

        one()
        if len(failures) > 20:
            break
    assert failures == []
    assert sum(seen.values()) > (100_000 if full_size else 400)
    assert seen[200] > 20
    assert {400, 404, 422} <= set(seen)


def _strategy(operation: Any, mode: GenerationMode) -> Any:
    return operation.as_strategy(mode)


def _tried(case: Case, target: Target, http: requests.Session) -> tuple[int, str]:
    ours = random.Random(str(case.path_parameters) + str(case.body)).random() < 0.7
    for name in [one for one in case.headers or () if one.lower() == "authorization"]:
        # Made up, so always wrong: it would never come past the door.
        del case.headers[name]
    if case.path_parameters and ours:
        names = {"id": target.session, "eid": target.exec, "port": "8000", "run_id": target.run}
        if case.operation.path == "/v1/tools/{name}":
            names["name"] = "sandbox_exec"
        case.path_parameters.update({k: v for k, v in names.items() if k in case.path_parameters})
    if case.method.upper() == "DELETE" and case.operation.path == "/v1/sessions/{id}":
        case.path_parameters["id"] = "sbx_0000000000000000"
    if isinstance(case.query, dict):
        for wait in ("wait", "wait_seconds"):
            if isinstance(case.query.get(wait), int | float):
                case.query[wait] = 0.01
    try:
        reply = case.call(base_url=target.url, session=http, timeout=PATIENCE_S)
    except (requests.exceptions.InvalidHeader, UnicodeError, ValueError):
        # What the client's own library refuses never leaves it.
        return 0, ""
    except requests.exceptions.RequestException as exc:
        return -1, f"{case.method} {case.operation.path}: {exc!r}"
    where = f"{case.as_curl_command()[:600]}: {reply.status_code}"
    if reply.status_code >= 500 and reply.status_code not in CANNOT_NOW:
        return reply.status_code, where
    try:
        path = urlsplit(reply.request.url or "").path
        kind = ",".join(reply.headers.get("content-type", []))
        check(case.method.upper(), path, reply.status_code, kind, reply.content)
    except AssertionError as exc:
        return reply.status_code, f"{where}: {exc}"
    return reply.status_code, ""
