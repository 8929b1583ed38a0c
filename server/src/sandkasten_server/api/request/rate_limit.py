"""The request rate of each tenant: one token bucket each."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from sandkasten.errors import QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandkasten.model.access.tenancy import Principal

# Seconds' worth of requests that may come at once after a pause.
_BURST_S: Final = 2.0


class Rates:
    """Token buckets. Only tenants with a live key have one, so there are few."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, principal: Principal) -> None:
        """Take one token; QuotaExceeded with the seconds to wait if there is none."""
        rate = principal.quota.requests_per_second
        if rate is None:
            return
        most = max(1.0, rate * _BURST_S)
        now = self._now()
        tokens, then = self._left.get(principal.tenant, (most, now))
        tokens = min(most, tokens + (now - then) * rate)
        if tokens < 1.0:
            self._left[principal.tenant] = (tokens, now)
            wait_s = (1.0 - tokens) / rate if rate > 0 else 60.0
            raise QuotaExceeded(
                f"more than {rate:g} requests a second",
                hint="wait for the seconds in Retry-After",
                quota="rate",
                limit=rate,
                retry_after_s=max(1, math.ceil(wait_s)),
            )
        self._left[principal.tenant] = (tokens - 1.0, now)
