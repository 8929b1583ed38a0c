"""Leases by which daemons divide the upkeep of the sandboxes that all of them can reach.

A sandbox is in one of 128 shards, by its id. With every pulse a daemon renews the leases of its
fair share of them and takes free ones. It leaves a lease that is more than its share to expire, as
a daemon that died does. Whenever a shard changes hands, its fence is incremented; the ledger
refuses a write that was begun with an earlier fence. Only the clock of the database decides when a
lease ends. This process uses its own clock only to stop earlier.
"""

from __future__ import annotations

import time
import zlib
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS: Final = 128
LEASE_S: Final = 20
# A node that was not seen for this long is dead; it announces with every pulse that it lives.
NODE_S: Final = 30
# Leases of this node come first, so that it keeps them as long as its share allows. A row that is
# locked belongs to a write or to another daemon, and is taken with the next pulse.
_RENEW = f"""
WITH seen AS (
    INSERT INTO nodes (id, seen_at, shares) VALUES ($1, now(), true)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, shares = true
), wanted AS (
    SELECT id FROM shards WHERE node = $1 OR until <= now()
    ORDER BY node = $1 AND until > now() DESC, id
    LIMIT ceil({SHARDS} / (1.0 + (SELECT count(*) FROM nodes
        WHERE id <> $1 AND shares AND seen_at > now() - interval '{NODE_S} s')))
    FOR UPDATE SKIP LOCKED
)
UPDATE shards SET node = $1, until = now() + interval '{LEASE_S} s',
    fence = fence + CASE WHEN node = $1 AND until > now() THEN 0 ELSE 1 END
FROM wanted WHERE shards.id = wanted.id RETURNING shards.id, shards.fence
"""  # noqa: S608  (three numbers)


@dataclass(frozen=True, slots=True)
class Lease:
    shard: int
    fence: int


_fence: ContextVar[Lease | None] = ContextVar("fence", default=None)


class ShardLeases:
    def __init__(self, node: str) -> None:
        self.node = node
        self._held: dict[int, Lease] = {}
        self._until = 0.0

    async def renew(self, connection: Any, timeout_s: float) -> None:
        """Announce that this node lives, and renew and take leases."""
        asked_at = _now()
        rows = await connection.fetch(_RENEW, self.node, timeout=timeout_s)
        self._held = {row["id"]: Lease(row["id"], row["fence"]) for row in rows}
        self._until = asked_at + LEASE_S

    def lease(self, sandbox_id: str) -> Lease | None:
        """Return the lease for a sandbox; None if it is leased to another daemon."""
        return self._held.get(shard_of(sandbox_id)) if _now() < self._until else None

    @contextmanager
    def fenced(self, sandbox_id: str) -> Iterator[None]:
        """Bind the writes of the block to the lease for the sandbox, if this process has it."""
        token = _fence.set(self.lease(sandbox_id))
        try:
            yield
        finally:
            _fence.reset(token)


def shard_of(sandbox_id: str) -> int:
    return zlib.crc32(sandbox_id.encode("utf-8", "surrogatepass")) % SHARDS


def current_fence() -> Lease | None:
    return _fence.get()


def _now() -> float:
    # Also counts while the machine is suspended.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
