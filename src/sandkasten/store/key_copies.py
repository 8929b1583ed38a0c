"""The copies of API keys in memory that a request is checked against: no disk, no database.

The stores of keys fill them. A use of a key is passed on to be written, at most once a minute.
"""

from __future__ import annotations

import hmac
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sandkasten.model.journal_rows import KeyRow
    from sandkasten.store.write_behind import WriteBehind

_USED_EVERY_S: Final = 60.0


class KeyCopies:
    """The part of `ports.Keys` that answers from memory."""

    def __init__(self, known: dict[bytes, KeyRow], behind: WriteBehind[str, KeyRow]) -> None:
        self._by_hash = known
        self._behind = behind

    def check(self, hashed: bytes, now: float) -> KeyRow | None:
        # A lookup by hash leaks nothing useful: a caller who can choose a hash that shares bytes
        # with another has no key that produces it.
        row = self._by_hash.get(hashed)
        known = hashed if row is not None else bytes(len(hashed))
        if not hmac.compare_digest(known, hashed) or row is None:
            return None
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            return None
        if row.last_used_at is None or now - row.last_used_at >= _USED_EVERY_S:
            row = self._by_hash[hashed] = replace(row, last_used_at=now)
            self._behind.put(row.id, row)
        return row

    def any_living(self, now: float) -> bool:
        return any(
            row.revoked_at is None and (row.expires_at is None or row.expires_at > now)
            for row in self._by_hash.values()
        )

    def any_made(self) -> bool:
        return bool(self._by_hash)
