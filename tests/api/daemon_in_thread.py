"""A daemon in this process, with agents and a session, on an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten_agents.agent_assembly import agent_service
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.daemon.persistent_stores import Books, open_books
from tests.api.daemon_in_process import serving
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.agent_ports import Agents
    from sandkasten_runtime.engine.engine import Engine


class DaemonThread:
    """A daemon with one session, in a separate thread."""

    def __init__(self, data_dir: Path) -> None:
        self.url = ""
        self.port = 0
        self.session = ""
        self.exec = ""
        self.run = ""
        self.ident = 0
        """Of the thread with its event loop."""
        self._data_dir = data_dir
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> DaemonThread:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)

    async def _serve(self) -> None:
        self.ident = threading.get_ident()
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
            self.url, self.port = daemon.url, daemon.port
            self.session = await daemon.session(lifetime_seconds=14_400)
            ran = await daemon.ask("POST", f"/v1/sessions/{self.session}/exec", {"cmd": "echo a"})
            self.exec = ran.json["exec_id"]
            flow = {"source": "id: tiny\nsteps: [{id: done, type: end}]\n"}
            self.run = (await daemon.ask("POST", "/workflow-runs", flow)).json["run_id"]
            self._ready.set()
            await self._end.wait()
            for info in await engine.list(all=True):
                await engine.destroy(info.id)
