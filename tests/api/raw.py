"""A client that sends exact bytes and reads until the other side closes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Heard:
    raw: bytes
    closed: bool
    """By the other side, before we gave up."""

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1]) if self.raw else 0


async def say(
    port: int, *pieces: bytes | float, give_up_s: float = PATIENCE_S, until: bytes | None = None
) -> Heard:
    """Send bytes; numbers are pauses in seconds. With `until`, stop when that was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.ensure_future(_send(writer, pieces))
    raw, closed = b"", False
    try:
        async with asyncio.timeout(give_up_s):
            while until is None or until not in raw:
                piece = await reader.read(65536)
                if not piece:
                    closed = True
                    break
                raw += piece
    except TimeoutError:
        pass
    except ConnectionError:
        closed = True
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    writer.close()
    return Heard(raw, closed)


async def _send(writer: asyncio.StreamWriter, pieces: Sequence[bytes | float]) -> None:
    for piece in pieces:
        if isinstance(piece, bytes):
            writer.write(piece)
            await writer.drain()
        else:
            await asyncio.sleep(piece)
