"""When to ask a server again: exponential back-off with jitter, and Retry-After. Pure."""

from __future__ import annotations

import random
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_MILLISECONDS: Final = re.compile(r"\d{1,11}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double, up to `max_s`, with jitter."""

    first_s: float
    max_s: float

    def pause_s(self, failures: int, draw: Callable[[], float] = random.random) -> float:
        """Return the pause after that many failures; `draw` returns a number from 0 to 1.

        At least half of it is certain. The rest is random, so that clients which failed at the
        same time do not all come back at the same time.
        """
        # The power itself would overflow after a thousand failures.
        doubled = self.first_s * 2.0 ** min(failures - 1, 64)
        return min(self.max_s, doubled) * (0.5 + draw() / 2)


def retry_after_s(headers: Mapping[str, str], now: float) -> float:
    """Return the seconds that a server asks to wait; 0 if it sends none, or none that is valid.

    Reads Retry-After as seconds or as a date, and Retry-After-Ms, which some endpoints send.
    """
    milliseconds = headers.get("Retry-After-Ms", "").strip()
    if _MILLISECONDS.fullmatch(milliseconds):
        return int(milliseconds) / 1000
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0
