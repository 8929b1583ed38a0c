"""The sandboxes that this process maintains: all of them, unless the ledger divides them among
several daemons. A request is served for any sandbox.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from sandkasten.ports import DividesUpkeep

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sandkasten.ports import Store


class Upkeep:
    def __init__(self, store: Store) -> None:
        self._divided = store if isinstance(store, DividesUpkeep) else None

    def is_shared(self, backend: str) -> bool:
        return self._divided is not None and self._divided.shares(backend)

    def is_ours(self, backend: str, the_id: str) -> bool:
        divided = self._divided
        return divided is None or not divided.shares(backend) or divided.tends(the_id)

    def fenced(self, the_id: str) -> AbstractContextManager[None]:
        """Refuse writes of the block with Busy if another daemon has taken the sandbox over."""
        return nullcontext() if self._divided is None else self._divided.fenced(the_id)
