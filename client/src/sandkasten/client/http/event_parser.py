"""Parse server-sent events. Pure."""

from __future__ import annotations

from sandkasten.errors import ProtocolViolation

# The last event holds all kept output, in base64 if it is not UTF-8.
MAX_EVENT_BYTES = 512 << 20
# An empty line takes memory too: its place in the list, and a line end when lines are joined.
_LINE_BYTES = 9


class Event:
    __slots__ = ("data", "name")

    def __init__(self, name: str, data: str) -> None:
        self.name = name
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.name, self.data) == (other.name, other.data)

    def __hash__(self) -> int:
        return hash((self.name, self.data))


class Parser:
    """Parses bytes into events; comments and unused fields are dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete; ProtocolViolation if one is too large."""
        self._rest += data
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise too_large()
        events: list[Event] = []
        start = 0
        while (end := self._rest.find(b"\n", start)) >= 0:
            line = bytes(self._rest[start:end]).removesuffix(b"\r")
            start = end + 1
            event = self._line(line)
            if event is not None:
                events.append(event)
        del self._rest[:start]
        return events

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"data":
            self._data.append(value.decode("utf-8", "replace"))
            self._size += len(value) + _LINE_BYTES
        return None


def too_large() -> ProtocolViolation:
    return ProtocolViolation("an event of the daemon is larger than any it sends")
