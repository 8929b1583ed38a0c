"""Host names by which E2B's SDKs reach a daemon that has a domain.

With only `E2B_DOMAIN` an SDK uses `https://api.{domain}` for sandboxes, and for one sandbox
`https://{port}-{id}.{domain}`: 49983 for commands and files, 49999 for code. Requests to these
names reach the routes below the prefix; all others go on unchanged. The name decides which sandbox
is meant, whatever else the request has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.model.access.preview_links import target_of
from sandkasten.model.ids import host_label
from sandkasten_server.api.request.request_guard import NAMED_HOST, host_name, plain_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_server.api.request.http_call import Call

    AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]

PREFIX: Final = "/e2b"
_API: Final = "api"
# The port of envd, and that of the code interpreter.
_PORTS: Final = frozenset({49983, 49999})
_ID_HEADER: Final = b"e2b-sandbox-id"
_TOLD: Final = "sandkasten.e2b_domain"


class E2bNames:
    """An ASGI application that gives requests to these names to `app`, and others to `other`."""

    def __init__(self, domain: str, app: AsgiApp, other: AsgiApp) -> None:
        self._domain = domain
        self._app = app
        self._other = other

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        changed = self._changed(scope) if scope["type"] == "http" else None
        if changed is None:
            await self._other(scope, receive, send)
        else:
            await self._app(changed, receive, send)

    def _changed(self, scope: Any) -> Any | None:
        """Return the request as one below the prefix; None if the name is not one of E2B's."""
        host = plain_headers(scope["headers"]).get("host", "")
        name = (host_name(host) or "").removesuffix(".")
        if not name.endswith(f".{self._domain}"):
            return None
        changed = {**scope, "path": PREFIX + scope["path"], NAMED_HOST: host_name(host)}
        if name == f"{_API}.{self._domain}":
            # With the port that the client uses, which a tunnel may have changed.
            port = host.rpartition(":")[2]
            changed[_TOLD] = f"{self._domain}:{port}" if port.isdigit() else self._domain
            return changed
        target = target_of(name, self._domain)
        if target is None or target.port not in _PORTS:
            return None
        others = [pair for pair in scope["headers"] if pair[0].lower() != _ID_HEADER]
        changed["headers"] = [*others, (_ID_HEADER, target.sandbox_id.encode())]
        return changed


def told_domain(call: Call) -> str | None:
    """Return the domain by which the client reached the daemon; None if by another address."""
    domain: str | None = call.connection.scope.get(_TOLD)
    return domain


def told_id(call: Call, info: Info, domain: str | None) -> str:
    """Return the id of a sandbox for a client; one that has a domain gets it as a label.

    It builds host names of ports from both, and OpenSSL does not match an underscore with a
    wildcard certificate.
    """
    return info.id if (told_domain(call) or domain) is None else host_label(info.id)
