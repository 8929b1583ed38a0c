"""The operator's rules for packages: whether, which, from where, time and size limits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import field
from urllib.parse import SplitResult, urlsplit

from sandkasten.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PackageRules:
    enabled: bool = True
    index_url: str | None = field(default=None, repr=False)
    """May contain credentials: never printed. None: pip's own configuration on this machine."""
    find_links: str | None = None
    """A directory of wheels. Without `index_url`, it is the only source."""
    npm_registry: str | None = field(default=None, repr=False)
    """Like `index_url`; None: npm's own configuration on this machine."""
    allow: tuple[str, ...] | None = None
    build: bool = True
    """Whether source distributions are built and install scripts run, in a sandbox."""
    timeout_s: float = 600.0
    max_bytes: int = 10 << 30

    @property
    def pip_source(self) -> list[str]:
        """Return what decides which files pip finds. A folder counts with its content.

        Without builds it is another source, so that a set that was built earlier is not used.
        """
        found = [] if self.index_url is None else [f"index {address(self.index_url)}"]
        if self.find_links is not None:
            found.append(f"folder {self.find_links} {_listing(self.find_links)}")
        found = found or ["as pip is configured"]
        return found if self.build else [*found, "wheels only"]


def address(url: str) -> str:
    """Return the address without credentials."""
    split = urlsplit(url)
    return split._replace(netloc=_bare(split)).geturl()


def _bare(split: SplitResult) -> str:
    return split.netloc.rpartition("@")[2]


def _listing(directory: str) -> str:
    try:
        entries = sorted(
            (entry.name, found.st_size, found.st_mtime_ns)
            for entry in os.scandir(directory)
            for found in (entry.stat(),)
        )
    except OSError as exc:
        return f"({exc.strerror})"
    return hashlib.sha256(repr(entries).encode()).hexdigest()
