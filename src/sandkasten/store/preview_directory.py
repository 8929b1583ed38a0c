"""The key that signs links to previews, and the ports that are public, in two files.

One daemon at a time uses the directory. Ids of sandboxes are never used again, so an entry that
outlives its sandbox opens nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import create_file, write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import QuotaExceeded, StoreUnusable

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from sandkasten.model.access.preview_links import PreviewTarget

_KEY_FILE: Final = "key"
_PUBLIC_FILE: Final = "public.json"
_MAX_FILE: Final = 4 << 20
# Of all sandboxes. An application has a handful.
MAX_PUBLIC: Final = 10_000


class PreviewDirectory:
    """Open it with `open`."""

    def __init__(self, directory: Path, key: bytes, public: dict[str, float | None]) -> None:
        self._directory = directory
        self.key = key
        self._public = public
        self._changing = asyncio.Lock()

    @classmethod
    async def open(cls, directory: Path) -> PreviewDirectory:
        """Read the directory; make it and the key at first use."""
        return await asyncio.to_thread(cls._open, directory)

    @classmethod
    def _open(cls, directory: Path) -> PreviewDirectory:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A daemon also starts on a full disk.
            if not (directory / _KEY_FILE).exists():
                create_file(directory / _KEY_FILE, secrets.token_bytes(32))
            key = (directory / _KEY_FILE).read_bytes()
            public = _read(directory / _PUBLIC_FILE)
        except OSError as exc:
            raise disk_error("read the key of the previews", exc, StoreUnusable) from exc
        if len(key) != 32:
            raise StoreUnusable(
                f"{directory / _KEY_FILE} is damaged",
                hint="remove it; links that were made before stop working",
                reason="damaged",
            )
        return cls(directory, key, public)

    def is_public(self, target: PreviewTarget, now: float) -> bool:
        until = self._public.get(_name(target), 0.0)
        return until is None or now < until

    def public_until(self, target: PreviewTarget) -> float | None:
        """Return when a public port becomes private; None: with its sandbox."""
        return self._public.get(_name(target))

    async def publish(self, target: PreviewTarget, until: float | None) -> None:
        """Open the port to every client; durable when it returns."""
        async with self._changing:
            if len(self._public) >= MAX_PUBLIC and _name(target) not in self._public:
                raise QuotaExceeded(
                    f"there are {MAX_PUBLIC} public previews already",
                    hint="make one private: sandkasten url ID PORT --private",
                    quota="previews",
                )
            await self._store({**self._public, _name(target): until})

    async def withdraw(self, target: PreviewTarget) -> None:
        async with self._changing:
            if _name(target) in self._public:
                kept = {one: end for one, end in self._public.items() if one != _name(target)}
                await self._store(kept)

    async def retain(self, sandbox_ids: Collection[str], now: float) -> None:
        """Forget what is over, and the ports of every other sandbox."""
        async with self._changing:
            kept = {
                one: end
                for one, end in self._public.items()
                if one.partition(":")[0] in sandbox_ids and (end is None or now < end)
            }
            if kept != self._public:
                await self._store(kept)

    async def _store(self, public: dict[str, float | None]) -> None:
        data = json.dumps(public).encode()
        try:
            await asyncio.to_thread(write_file, self._directory / _PUBLIC_FILE, data)
        except OSError as exc:
            raise disk_error("store the public previews", exc, StoreUnusable) from exc
        self._public = public


def _name(target: PreviewTarget) -> str:
    return f"{target.sandbox_id}:{target.port}"


def _read(path: Path) -> dict[str, float | None]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_FILE))
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        end is None or (isinstance(end, int | float) and not isinstance(end, bool))
        for end in found.values()
    ):
        raise StoreUnusable(
            f"{path} is damaged",
            hint="remove it; ports that were public become private",
            reason="damaged",
        )
    return found
