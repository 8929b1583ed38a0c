"""Build cache: from a key of all inputs to the resulting digest.

One small file per key, `builds/<hex>`. A lost or damaged entry only means that the work is
repeated, and so does an entry whose result the store no longer has. Blocking.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sandkasten.disk.atomic_file import write_file
from sandkasten.disk.os_errors import translated
from sandkasten.disk.small_file import read_json_object
from sandkasten_runtime.images.canonical_json import canonical_json

if TYPE_CHECKING:
    from pathlib import Path


def build_key(**parts: object) -> str:
    """Return the key: equal parts, equal key. Everything that decides the result must be
    included.
    """
    return hashlib.sha256(canonical_json(parts)).hexdigest()


class BuildCache:
    """`root` is the store's."""

    def __init__(self, root: Path) -> None:
        self._builds = root / "builds"

    def get(self, key: str) -> str | None:
        """Return the remembered digest."""
        result = (read_json_object(self._builds / key) or {}).get("result")
        return result if isinstance(result, str) else None

    def put(self, key: str, result: str) -> None:
        with translated("remember a build"):
            self._builds.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._builds / key, canonical_json({"result": result}))
