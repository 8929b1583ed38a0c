"""One line in the log for each request, without anything that a client chose freely.

Paths and queries may hold names of files, ids and keys given by mistake; the template of the route
is logged instead. The request id has only letters, digits and three other characters.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sandkasten.api")
# What probes and scrapers ask for, many times a minute.
_ROUTINE: Final = frozenset({"/healthz", "/readyz", "/metrics"})


_WINDOW_S: Final = 60.0
_LINES_A_WINDOW: Final = 10
_MOST_ADDRESSES: Final = 1024


@dataclass(slots=True)
class _Window:
    began: float
    lines: int = 0
    left_out: int = 0


class RefusalLines:
    """Bounds the lines about requests without a valid key: ten a minute from an address.

    Such a request is answered as fast as any other. Keys have 256 random bits, so delays would not
    make guessing harder, and would hold connections open for a client that guesses.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[str, _Window] = {}

    def left_out(self, address: str) -> int | None:
        """Return how many lines were left out before this one; None to leave this one out too."""
        now = self._now()
        window = self._windows.get(address)
        before = 0
        if window is None or now - window.began >= _WINDOW_S:
            if window is not None:
                before = window.left_out
                del self._windows[address]
            elif len(self._windows) >= _MOST_ADDRESSES:
                # The oldest. Its address gets its lines again, as a new one would.
                del self._windows[next(iter(self._windows))]
            self._windows[address] = window = _Window(now)
        if window.lines >= _LINES_A_WINDOW:
            window.left_out += 1
            return None
        window.lines += 1
        return before


def log_request(
    *,
    method: str | None,
    route: str | None,
    status: int,
    seconds: float,
    request_id: str,
    key_id: str | None,
    tenant: str | None,
    code: str | None,
    left_out: int = 0,
) -> None:
    """Log a request. What is unknown is None; `status` is 0 if the client had left.

    Probes and scrapes that succeed are DEBUG. `left_out`: lines like this one that were not
    written.
    """
    level = logging.DEBUG if route in _ROUTINE and code is None else logging.INFO
    if log.isEnabledFor(level):
        fields = {
            "method": method,
            "route": route or "none",
            "status": status,
            "ms": round(seconds * 1000, 1),
            "request_id": request_id,
            "key_id": key_id,
            "tenant": tenant,
            "code": code,
        }
        if left_out:
            fields["left_out"] = left_out
        log.log(level, "http.request", extra={"sandkasten": fields})
