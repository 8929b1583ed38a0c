"""A daemon with a database: journal, keys and stored files."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten_runtime.assembly.backend_registry import prepare_data_dir
from sandkasten_runtime.engine.clock import SystemClock
from sandkasten_server.api.request.authentication import Doorkeeper
from sandkasten_server.daemon.persistent_stores import open_books
from tests.api.daemon_in_process import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandkasten_runtime.engine.engine import Engine
    from tests.api.daemon_in_process import Daemon

OPERATOR = "the-operators-own-key-of-this-test"
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR}"}


@asynccontextmanager
async def booked(engine: Engine, data_dir: Path, **parts: Any) -> AsyncIterator[Daemon]:
    """Serve a daemon that requires a key: the operator's, or one created with it."""
    clock = SystemClock()
    prepare_data_dir(data_dir)
    async with open_books(settings(ServerAddress(str(data_dir), "unisolated")), clock) as books:
        doorkeeper = Doorkeeper(clock=clock, keys=books.keys, api_key=OPERATOR)
        parts = {"doorkeeper": doorkeeper, "files": books.files, "audit": books.audit, **parts}
        engine.trail.log = parts["audit"]
        async with serving(engine, journal=books.journal, keys=books.keys, **parts) as one:
            yield one


async def new_key(daemon: Daemon, **body: object) -> dict[str, str]:
    """Create a key and return its header."""
    made = await daemon.ask("POST", "/v1/keys", body, headers=AS_OPERATOR)
    assert made.status == 201, made.raw
    return {"Authorization": f"Bearer {made.json['key']}"}
