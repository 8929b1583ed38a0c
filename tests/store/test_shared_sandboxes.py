"""Two engines on one database and one backend that both can reach: each serves every sandbox."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from sandkasten.daemon import backend_registry, engine_assembly
from sandkasten.daemon.backend_registry import Backing
from sandkasten.daemon.engine_assembly import open_engine
from sandkasten.daemon.persistent_stores import open_books
from sandkasten.daemon.settings.resolver import load
from sandkasten.daemon.shared_store import shared_store
from sandkasten.engine.clock import SystemClock
from sandkasten.errors import InvalidConfiguration, SessionExpired
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from tests.store.memory_store import MemoryStore
from tests.unisolated.backend import UnisolatedBackend

pytestmark = pytest.mark.promise("P98")


@pytest.fixture
async def engines(postgres_server, tmp_path, monkeypatch):
    """Return two engines as two daemons have them, with a data directory each."""
    backend = UnisolatedBackend(tmp_path / "cluster")
    backing = Backing({backend.name: backend}, MemoryStore(), backend.workspaces)
    monkeypatch.setattr(backend_registry, "open_backing", lambda *_: backing)
    monkeypatch.setattr(backend_registry, "shared_backends", lambda _: frozenset({backend.name}))
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url, "SANDKASTEN_POOL_ONESHOT_SPARES": "0"}
    opened = []
    async with AsyncExitStack() as stack:
        for name in ("one", "other"):
            flags = {"data_dir": str(tmp_path / name), "backend": backend.name}
            settings = load(flags, environ, tmp_path)
            shared = await stack.enter_async_context(shared_store(settings))
            books = await stack.enter_async_context(
                open_books(settings, SystemClock(), shared=shared)
            )
            engine = await open_engine(settings, journal=books.journal, shared=shared)
            stack.push_async_callback(engine.aclose)
            opened.append(engine)
        yield opened


async def test_every_engine_serves_the_sandboxes_of_a_shared_backend(engines):
    one, other = engines
    made = await one.create(CreateRequest(session_key="k"))
    assert (await other.create(CreateRequest(session_key="k"))).id == made.id
    await one.exec(made.id, ExecRequest("greeting=hello"))
    assert (await other.exec(made.id, ExecRequest("echo $greeting"))).stdout == b"hello\n"
    # A daemon that starts, and a reaper, leave the sandboxes of the others alone.
    await other.recover_soon()
    await other.sweep()
    assert (await one.exec(made.id, ExecRequest("echo $greeting"))).stdout == b"hello\n"
    assert [info.id for info in await other.list()] == [made.id]
    await other.destroy(made.id)
    with pytest.raises(SessionExpired, match="was destroyed"):
        await one.exec(made.id, ExecRequest("echo $greeting"))
    assert list(await one.list()) == []


async def test_an_engine_that_cannot_be_opened_closes_its_database(
    postgres_server, tmp_path, monkeypatch
):
    def fail(*_):
        raise InvalidConfiguration("no")

    monkeypatch.setattr(engine_assembly, "Provisioner", fail)
    environ = {"SANDKASTEN_STORE_URL": postgres_server.url}
    settings = load({"data_dir": str(tmp_path / "data")}, environ, tmp_path)
    with pytest.raises(InvalidConfiguration):
        await open_engine(settings)
    watching = [task for task in asyncio.all_tasks() if "_watch" in repr(task.get_coro())]
    assert watching == []
