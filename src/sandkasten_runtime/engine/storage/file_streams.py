"""Decode what the runner sends during a file verb: an entry, bytes, changes.

Raises ProtocolViolation for anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, cast

from sandkasten.errors import ProtocolViolation
from sandkasten.model.files.file_entries import Change
from sandkasten_runtime.wire.call import Call, CallEvent, Data
from sandkasten_runtime.wire.json_bodies import from_bytes_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHANGES: Final = frozenset({"created", "modified", "deleted", "moved"})


async def open_event(call: Call) -> CallEvent:
    """Return the event that precedes the bytes; the runner's refusal is raised here."""
    async for item in call:
        if isinstance(item, CallEvent) and item.name == "open":
            return item
        break
    raise ProtocolViolation("the runner sent file content without an entry")


async def pieces_of(call: Call) -> AsyncIterator[bytes]:
    async for item in call:
        if isinstance(item, Data):
            yield bytes(item.data)
    await call.result()


async def changes_of(call: Call) -> AsyncIterator[Change]:
    async for item in call:
        if isinstance(item, CallEvent):
            change = _change(item)
            if change is not None:
                yield change


def _change(event: CallEvent) -> Change | None:
    if event.name == "overflow":
        return Change("overflow", "", is_dir=False)
    if event.name != "change":
        return None
    kind = event.body.get("change")
    if kind not in _CHANGES:
        raise ProtocolViolation("the runner reported an unknown kind of change")
    return Change(
        cast("Literal['created', 'modified', 'deleted', 'moved']", kind),
        from_bytes_json(event.body.get("path"), "the path of a change"),
        is_dir=event.body.get("is_dir") is True,
    )
