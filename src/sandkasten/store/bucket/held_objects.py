"""Objects that readers have in memory between two pieces, of bounded size in all.

A reader may take an object slowly, and many may do so at once. If they hold too much, those that
wait longest lose theirs, and read it again for the next piece.
"""

from __future__ import annotations

from collections import OrderedDict

from sandkasten.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HeldObject:
    starts_at: int
    data: bytes

    def covers(self, offset: int) -> bool:
        return self.starts_at <= offset < self.starts_at + len(self.data)


class HeldObjects:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_reader: OrderedDict[object, HeldObject] = OrderedDict()
        self.size_bytes = 0

    def get(self, reader: object, offset: int) -> HeldObject | None:
        """Return the object of a reader, if it still has one with this byte."""
        held = self._by_reader.get(reader)
        if held is None or not held.covers(offset):
            return None
        self._by_reader.move_to_end(reader)
        return held

    def keep(self, reader: object, held: HeldObject) -> None:
        self.forget(reader)
        self._by_reader[reader] = held
        self.size_bytes += len(held.data)
        while self.size_bytes > self._max_bytes and len(self._by_reader) > 1:
            _, oldest = self._by_reader.popitem(last=False)
            self.size_bytes -= len(oldest.data)

    def forget(self, reader: object) -> None:
        held = self._by_reader.pop(reader, None)
        if held is not None:
            self.size_bytes -= len(held.data)
