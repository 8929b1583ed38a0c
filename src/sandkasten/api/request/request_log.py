"""One line in the log for each request, without anything that a client chose freely.

Paths and queries may hold names of files, ids and keys given by mistake; the template of the route
is logged instead. The request id has only letters, digits and three other characters.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger("sandkasten.api")
# What probes and scrapers ask for, many times a minute.
_ROUTINE: Final = frozenset({"/healthz", "/readyz", "/metrics"})


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
) -> None:
    """Log a request. What is unknown is None; `status` is 0 if the client had left.

    Probes and scrapes that succeed are DEBUG.
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
        log.log(level, "http.request", extra={"sandkasten": fields})
