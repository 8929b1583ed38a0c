"""The machine's clocks, behind `ports.Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """The system clocks. `boottime` also counts while the machine sleeps, as the runner's leases
    do.
    """

    def now(self) -> float:
        return time.time()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
