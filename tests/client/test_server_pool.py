"""The servers of a process, for each of its event loops."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

from sandkasten.client.server import server_pool
from sandkasten.client.server.daemon_or_embedded import ServerAddress


class _Transport:
    async def aclose(self) -> None:
        return


def test_threads_may_connect_for_the_first_time_together(monkeypatch):
    async def opened(place: ServerAddress) -> _Transport:
        return _Transport()

    async def connected() -> object:
        return await server_pool.connect(ServerAddress("/nowhere", None))

    def use() -> None:
        for _ in range(150):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(connected())
            # Without the end that `asyncio.run` gives it: the next connect finds it.
            loop.close()

    monkeypatch.setattr(server_pool, "open_transport", opened)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for one in [threads.submit(use) for _ in range(4)]:
                one.result()
    finally:
        sys.setswitchinterval(usual)
