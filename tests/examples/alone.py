"""A network namespace with a daemon on localhost:8080, and one program that uses it.

Run it below `unshare --net`, so that the port is free. argv: data directory, then the program.
EXAMPLE_DAEMON is the daemon's key, `open` for a daemon without one, or `no` for no daemon.
EXAMPLE_MODEL is a script of a model, which then answers at OPENAI_BASE_URL.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import struct
import sys
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.client.http.served import served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SIOCSIFFLAGS = 0x8914
IFF_UP = 1


async def main() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    key = os.environ.get("EXAMPLE_DAEMON", "sk-sandbox-...")
    async with _model():
        with ExitStack() as stack:
            if key != "no":
                stack.enter_context(
                    served(
                        Path(sys.argv[1]),
                        *("--listen", "127.0.0.1:8080"),
                        backend=os.environ["EXAMPLE_BACKEND"],
                        SANDKASTEN_API_KEY="" if key == "open" else key,
                        SANDKASTEN_IMAGES_ALIASES="sandbox-runtime:python=host",
                    )
                )
            program = await asyncio.create_subprocess_exec(*sys.argv[2:])
            return await program.wait()


@asynccontextmanager
async def _model() -> AsyncIterator[None]:
    script = os.environ.pop("EXAMPLE_MODEL", None)
    if script is None:
        yield
        return
    from examples.agents.scripted_model import ScriptedModel, script_of

    async with ScriptedModel(script_of(json.loads(script))) as model:
        os.environ["OPENAI_BASE_URL"] = model.base_url
        yield


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
