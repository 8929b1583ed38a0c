"""A sha256 that is computed in parallel with reading.

hashlib releases the interpreter while it computes, so with a second core the digest of a layer
costs no extra time. The waiting pieces are bounded. Nothing here can fail; an unused digest is
abandoned with `close`. Knows nothing of layers or files.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Final, Self

# In pieces of one MiB: enough that neither side waits for short delays of the other.
_WAITING: Final = 8


class Digest:
    """Takes pieces from one thread; a piece must not change afterwards."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="sandkasten-digest", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def update(self, piece: bytes) -> None:
        self._pieces.put(piece)

    def close(self) -> None:
        if self._thread.is_alive():
            self._pieces.put(None)
            self._thread.join()

    def name(self) -> str:
        """Return `sha256:<hex>` of all pieces; nothing may follow."""
        self.close()
        return f"sha256:{self._sum.hexdigest()}"

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._sum.update(piece)
