"""The key of links to previews, revoked links, public ports and rules of sandboxes, in four files.

One daemon at a time uses the directory. Ids of sandboxes are never used again, so an entry that
outlives its sandbox opens nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from sandkasten.disk.atomic_file import create_file, write_file
from sandkasten.disk.os_errors import disk_error
from sandkasten.errors import QuotaExceeded, StoreUnusable
from sandkasten.model.access.preview_links import SandboxPreviews

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from sandkasten.model.access.preview_links import PreviewTarget

_KEY_FILE: Final = "key"
_PUBLIC_FILE: Final = "public.json"
_REVOKED_FILE: Final = "revoked.json"
_SANDBOXES_FILE: Final = "sandboxes.json"
_MAX_FILE: Final = 16 << 20
# A limit for all sandboxes. An application has a handful.
MAX_PUBLIC: Final = 10_000
# A limit for one sandbox. Revoking all of its links takes one entry.
MAX_REVOKED: Final = 200
# The entry of a sandbox that counts how often all of its links were revoked.
_SERIES: Final = "series"


class PreviewDirectory:
    """Open it with `open`."""

    def __init__(
        self,
        directory: Path,
        key: bytes,
        public: dict[str, float | None],
        revoked: dict[str, dict[str, float]],
        sandboxes: dict[str, SandboxPreviews],
    ) -> None:
        self._directory = directory
        self.key = key
        self._public = public
        self._revoked = revoked
        self._sandboxes = sandboxes
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
            public = _read_public(directory / _PUBLIC_FILE)
            revoked = _read_revoked(directory / _REVOKED_FILE)
            sandboxes = _read_sandboxes(directory / _SANDBOXES_FILE)
        except OSError as exc:
            raise disk_error("read the key of the previews", exc, StoreUnusable) from exc
        if len(key) != 32:
            raise StoreUnusable(
                f"{directory / _KEY_FILE} is damaged",
                hint="remove it; links that were made before stop working",
                reason="damaged",
            )
        return cls(directory, key, public, revoked, sandboxes)

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
                remaining = {
                    name: end for name, end in self._public.items() if name != _name(target)
                }
                await self._store(remaining)

    def rules_of(self, sandbox_id: str) -> SandboxPreviews:
        return self._sandboxes.get(sandbox_id, SandboxPreviews())

    async def set_rules_of(self, sandbox_id: str, rules: SandboxPreviews) -> None:
        """Set the rules for all ports of a sandbox; durable when it returns."""
        async with self._changing:
            if len(self._sandboxes) >= MAX_PUBLIC and sandbox_id not in self._sandboxes:
                raise QuotaExceeded(
                    f"there are {MAX_PUBLIC} sandboxes with rules for previews already",
                    hint="destroy sandboxes that are not needed",
                    quota="previews",
                )
            await self._store_sandboxes({**self._sandboxes, sandbox_id: rules})

    async def retain(self, sandbox_ids: Collection[str], now: float) -> None:
        """Forget what is over, and the ports of every other sandbox."""
        async with self._changing:
            remaining = {
                name: end
                for name, end in self._public.items()
                if name.partition(":")[0] in sandbox_ids and (end is None or now < end)
            }
            if remaining != self._public:
                await self._store(remaining)
            alive = {
                sandbox_id: links
                for sandbox_id, links in self._revoked.items()
                if sandbox_id in sandbox_ids
            }
            if alive != self._revoked:
                await self._store_revoked(alive)
            ruled = {
                sandbox_id: rules
                for sandbox_id, rules in self._sandboxes.items()
                if sandbox_id in sandbox_ids
            }
            if ruled != self._sandboxes:
                await self._store_sandboxes(ruled)

    def series(self, sandbox_id: str) -> int:
        """Return how often all links of a sandbox were revoked."""
        return int(self._revoked.get(sandbox_id, {}).get(_SERIES, 0))

    def is_revoked(self, sandbox_id: str, link_id: str) -> bool:
        return link_id in self._revoked.get(sandbox_id, {})

    async def revoke(self, sandbox_id: str, link_id: str, *, now: float, until: float) -> None:
        """Revoke one link, which expires by `until`; durable when it returns."""
        async with self._changing:
            links = {
                name: end
                for name, end in self._revoked.get(sandbox_id, {}).items()
                if name == _SERIES or now < end
            }
            if len(links) >= MAX_REVOKED and link_id not in links:
                raise too_many_revoked()
            links[link_id] = until
            await self._store_revoked({**self._revoked, sandbox_id: links})

    async def revoke_all(self, sandbox_id: str) -> None:
        """Revoke every link of a sandbox so far; durable when it returns."""
        async with self._changing:
            series = float(self.series(sandbox_id) + 1)
            await self._store_revoked({**self._revoked, sandbox_id: {_SERIES: series}})

    async def reload(self, sandbox_id: str) -> bool:
        return False

    async def _store(self, public: dict[str, float | None]) -> None:
        await self._write(_PUBLIC_FILE, public)
        self._public = public

    async def _store_revoked(self, revoked: dict[str, dict[str, float]]) -> None:
        await self._write(_REVOKED_FILE, revoked)
        self._revoked = revoked

    async def _store_sandboxes(self, sandboxes: dict[str, SandboxPreviews]) -> None:
        fields = {sandbox_id: asdict(rules) for sandbox_id, rules in sandboxes.items()}
        await self._write(_SANDBOXES_FILE, fields)
        self._sandboxes = sandboxes

    async def _write(self, name: str, value: object) -> None:
        data = json.dumps(value).encode()
        try:
            await asyncio.to_thread(write_file, self._directory / name, data)
        except OSError as exc:
            raise disk_error("store the previews", exc, StoreUnusable) from exc


def too_many_revoked() -> QuotaExceeded:
    return QuotaExceeded(
        f"{MAX_REVOKED} links of this sandbox are revoked already",
        hint="revoke all of them: sandkasten url ID --revoke-all",
        quota="previews",
    )


def _name(target: PreviewTarget) -> str:
    return f"{target.sandbox_id}:{target.port}"


def _read_public(path: Path) -> dict[str, float | None]:
    content = _read(path)
    if isinstance(content, dict) and all(
        end is None or _is_number(end) for end in content.values()
    ):
        return content
    raise _damaged(path, "remove it; ports that were public become private")


def _read_revoked(path: Path) -> dict[str, dict[str, float]]:
    content = _read(path)
    if isinstance(content, dict) and all(
        isinstance(links, dict) and all(_is_number(end) for end in links.values())
        for links in content.values()
    ):
        return content
    raise _damaged(path, f"remove it, and {_KEY_FILE} beside it so that no revoked link works")


def _read_sandboxes(path: Path) -> dict[str, SandboxPreviews]:
    content = _read(path)
    if isinstance(content, dict) and all(
        isinstance(rules, dict)
        and isinstance(rules.get("public"), bool | None)
        and isinstance(rules.get("host"), str | None)
        for rules in content.values()
    ):
        return {
            sandbox_id: SandboxPreviews(rules.get("public"), rules.get("host"))
            for sandbox_id, rules in content.items()
        }
    raise _damaged(path, "remove it; ports of sandboxes that were public become private")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _damaged(path: Path, hint: str) -> StoreUnusable:
    return StoreUnusable(f"{path} is damaged", hint=hint, reason="damaged")


def _read(path: Path) -> object:
    """Return the content of a file; None if it is not JSON."""
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_MAX_FILE))
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
