"""Whether requests extend the life of their sandboxes.

By default they do. Those of a caller that only looks, and the upkeep of the engine itself, reach a
sandbox without extending its life.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sandkasten_runtime.wire.channel import observing

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def activity(counts: bool) -> Iterator[None]:
    """Set whether requests made in this block, and by tasks that it starts, count as activity."""
    token = observing.set(not counts)
    try:
        yield
    finally:
        observing.reset(token)
