"""A scripted caller for tests of the tool interfaces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Shown:
    name: str
    description: str
    parameters: Mapping[str, Any]


_ANYTHING = {"type": "object", "properties": {"x": {"type": "integer"}}}
_WITH_ID = {"type": "object", "properties": {"sandbox_id": {"type": "string"}}}
BY_ID = [
    Shown("sandbox_run", "", _ANYTHING),
    Shown("sandbox_open", "", _ANYTHING),
    Shown("sandbox_exec", "", _WITH_ID),
    Shown("sandbox_close", "", _WITH_ID),
]
TOOLS = [Shown(name, f"It can {name}.", _ANYTHING) for name in ("echo", "fail", "wait", "break")]


@dataclass(slots=True)
class Log:
    """The events of the callers of one test, in order."""

    events: list[str] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    opened: int = 0

    def note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, *events: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.events != list(events):
                self.changed.clear()
                await self.changed.wait()

    def caller(self) -> Scripted:
        self.opened += 1
        return Scripted(self, self.opened)


class Scripted:
    def __init__(self, log: Log, number: int) -> None:
        self._log = log
        self._number = number

    def tools(self) -> Sequence[Shown]:
        return TOOLS

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if name == "fail":
            return {"ok": False, "error_code": "NO", "message": "it cannot be"}
        if name == "break":
            raise ValueError("a secret of the server")
        if name == "wait" or arguments.get("wait"):
            self._log.waiting.set()
            try:
                await self._log.go_on.wait()
            except asyncio.CancelledError:
                self._log.note(f"cancelled {self._number}")
                raise
        if name == "sandbox_open":
            return {"ok": True, "sandbox_id": f"sbx_{self._number}"}
        if name == "sandbox_close":
            return {"ok": True, "closed": True}
        return {"ok": True, "caller": self._number, "arguments": dict(arguments)}

    async def aclose(self) -> None:
        self._log.note(f"closed {self._number}")
