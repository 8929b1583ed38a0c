"""What was built before: a key of everything that went into it, and what came out.

One small file per key, `builds/<hex>`. A lost or damaged entry only means that the work is done
again, and so does an entry whose result the store no longer has. Blocking.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sandkasten.images.disk import canonical, read_object, translated, write_whole

if TYPE_CHECKING:
    from pathlib import Path


def build_key(**parts: object) -> str:
    """Equal parts, equal key. Everything that decides the result must be among them."""
    return hashlib.sha256(canonical(parts)).hexdigest()


class BuildCache:
    """`root` is the store's."""

    def __init__(self, root: Path) -> None:
        self._builds = root / "builds"

    def get(self, key: str) -> str | None:
        """The digest that was remembered."""
        found = (read_object(self._builds / key) or {}).get("result")
        return found if isinstance(found, str) else None

    def put(self, key: str, result: str) -> None:
        with translated("remember a build"):
            self._builds.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._builds / key, canonical({"result": result}))
