"""When a request pulls an image from its registry. Pure."""

from __future__ import annotations

from typing import Literal

PullMode = Literal["never", "named", "missing", "always"]
PULL_MODES: tuple[PullMode, ...] = ("never", "named", "missing", "always")


def may_pull(mode: PullMode, *, in_full: bool) -> bool:
    """Return whether a request for a missing image may ask a registry for it."""
    return in_full if mode == "named" else mode != "never"
