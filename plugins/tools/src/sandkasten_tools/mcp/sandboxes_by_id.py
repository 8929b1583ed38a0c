"""Sandboxes for MCP clients without a session, as protocol version 2026-07-28 has them.

Nothing distinguishes two such clients, so none has a default sandbox: `sandbox_open` always opens a
new one, and every other tool needs its id, which only the client that opened it knows. A sandbox is
destroyed when it is closed, after a time without calls, and with the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidRequest, QuotaExceeded, SandkastenError, SessionNotFound
from sandkasten.lazy_dataclass import dataclass
from sandkasten_tools.calls.tool_answers import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten_tools.adapter_protocols import ToolCaller, ToolInfo

log = logging.getLogger("sandkasten.mcp")

_OPEN: Final = "sandbox_open"
_CLOSE: Final = "sandbox_close"
_ID: Final = "sandbox_id"
_NEEDED: Final = "The sandbox_id that sandbox_open returned."
_OPENING: Final = (
    "Open a new sandbox: a Linux machine with a workspace and a shell that keep their state "
    "between calls. Pass the returned sandbox_id to the other tools, and close it at the end."
)


@dataclass(frozen=True, slots=True)
class _Shape:
    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(slots=True)
class _Entry:
    caller: ToolCaller
    used: float
    busy: int = 0
    """Calls in progress."""


def shapes_by_id(tools: Sequence[ToolInfo]) -> list[ToolInfo]:
    """Return the tools as a client without a session sees them: with the id as an argument."""
    return [_shape(tool) for tool in tools]


def _shape(tool: ToolInfo) -> ToolInfo:
    schema = dict(tool.parameters)
    properties = dict(schema.get("properties", {}))
    if tool.name == _OPEN:
        properties.pop("session_key", None)
        return _Shape(tool.name, _OPENING, {**schema, "properties": properties})
    if _ID not in properties:
        return tool
    properties.pop("session_id", None)
    properties[_ID] = {**properties[_ID], "description": _NEEDED}
    required = [*schema.get("required", ()), _ID]
    changed = {**schema, "properties": properties, "required": required}
    return _Shape(tool.name, tool.description, changed)


class SandboxesById:
    """A `ToolCaller` for all clients without a session."""

    def __init__(
        self,
        tools: Sequence[ToolInfo],
        open_caller: Callable[[], ToolCaller],
        *,
        idle_s: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allow at most `most` sandboxes at once; `sweep` destroys those unused for `idle_s`."""
        self._tools = tools
        self._open_caller = open_caller
        self._idle_s = idle_s
        self._most = most
        self._clock = clock
        self._with_id = {
            tool.name for tool in tools if _ID in tool.parameters.get("properties", {})
        }
        self._entries: dict[str, _Entry] = {}
        self._opening = 0
        self._closing: set[asyncio.Task[None]] = set()

    def tools(self) -> Sequence[ToolInfo]:
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        self.sweep()
        try:
            if name == _OPEN:
                return await self._open(arguments)
            if name in self._with_id:
                return await self._use(name, arguments)
        except SandkastenError as exc:
            return failure(exc)
        caller = self._open_caller()
        try:
            return await caller.call(name, arguments)
        finally:
            self._close_later(caller)

    def sweep(self) -> None:
        """Destroy the sandboxes that have had no call for the idle time."""
        long_ago = self._clock() - self._idle_s
        for the_id, entry in list(self._entries.items()):
            if not entry.busy and entry.used < long_ago:
                self._drop(the_id)

    async def aclose(self) -> None:
        for the_id in list(self._entries):
            self._drop(the_id)
        while self._closing:
            await asyncio.wait(self._closing)

    async def _open(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if "session_key" in arguments:
            raise InvalidRequest(
                "session_key names a sandbox within a session, and this protocol version has none",
                hint="leave it out, and pass the sandbox_id of the answer to the other tools",
                field="session_key",
            )
        if len(self._entries) + self._opening >= self._most:
            raise QuotaExceeded(
                f"clients without a session have {self._most} sandboxes, which is the maximum",
                hint="close one with sandbox_close",
                quota="sandboxes",
            )
        caller = self._open_caller()
        opened: Mapping[str, Any] = {}
        self._opening += 1
        try:
            opened = await caller.call(_OPEN, arguments)
        finally:
            self._opening -= 1
            the_id = opened.get(_ID)
            if isinstance(the_id, str):
                self._entries[the_id] = _Entry(caller, self._clock())
            else:
                self._close_later(caller)
        return opened

    async def _use(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        the_id = arguments.get(_ID, arguments.get("session_id"))
        if not isinstance(the_id, str):
            raise InvalidRequest(
                f"{name} requires sandbox_id: this protocol version has no sessions",
                hint="call sandbox_open, and pass the sandbox_id of its answer",
                field=_ID,
            )
        entry = self._entries.get(the_id)
        if entry is None:
            raise SessionNotFound(
                f"sandbox {the_id[:80]} does not exist", hint="it may have ended; open a new one"
            )
        entry.busy += 1
        try:
            answer = await entry.caller.call(name, arguments)
        finally:
            entry.busy -= 1
            entry.used = self._clock()
        if name == _CLOSE and answer.get("closed"):
            self._drop(the_id)
        return answer

    def _drop(self, the_id: str) -> None:
        entry = self._entries.pop(the_id, None)
        if entry is not None:
            self._close_later(entry.caller)

    def _close_later(self, caller: ToolCaller) -> None:
        # In a separate task: the library cancels every wait of a cancelled request.
        task = asyncio.create_task(close_caller(caller))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def close_caller(caller: ToolCaller) -> None:
    """Close it, and log an error."""
    try:
        await caller.aclose()
    except Exception:
        # The reaper removes what is left; the other callers must still be closed.
        log.exception("mcp.unclosed")
