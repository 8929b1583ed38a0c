"""One module a peer; each offers the same few verbs, and lacks those the peer lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.docker import Docker
    from benchmarks.peers.runc import Runc
    from benchmarks.peers.runsc import Runsc


@dataclass(frozen=True, slots=True)
class Peers:
    """Those that run on this machine; bare subprocesses always do."""

    docker: Docker | None
    runc: Runc | None
    bwrap: bool
    absent: tuple[str, ...]
    runsc: Runsc | None = None
