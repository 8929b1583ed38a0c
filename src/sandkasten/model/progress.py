"""How far a long piece of work has come, part by part. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Progress:
    """One part: a layer that is fetched, a step that is built."""

    part: str
    """Names it within its work: the beginning of a digest, `2/5`."""
    state: Literal["waiting", "running", "cached", "done"]
    done_bytes: int = 0
    total_bytes: int | None = None
    text: str = ""
    """What it does, for people: a line, maybe from a stranger's program."""
