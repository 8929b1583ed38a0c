"""Reads server-sent events as a client does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: Any
    id: str | None


async def events(reply: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for raw in reply.content:
        line = raw.decode().rstrip("\n")
        if not line:
            if fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
