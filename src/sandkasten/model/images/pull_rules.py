"""When a request pulls an image from its registry, and how much a pull may take. Pure."""

from __future__ import annotations

from typing import Literal

from sandkasten.lazy_dataclass import dataclass

PullMode = Literal["never", "named", "missing", "always"]
PULL_MODES: tuple[PullMode, ...] = ("never", "named", "missing", "always")


def may_pull(mode: PullMode, *, in_full: bool) -> bool:
    """Return whether a request for a missing image may ask a registry for it."""
    return in_full if mode == "named" else mode != "never"


@dataclass(frozen=True, slots=True)
class PullLimits:
    seconds: float = 3600.0
    image_bytes: int = 20 << 30
    """Of one image: its compressed layers, and again the same layers unpacked."""
    store_bytes: int = 50 << 30
    """Of the whole store; beyond it no request pulls."""
