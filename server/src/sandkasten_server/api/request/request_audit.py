"""The audit of requests: a record for every change through the daemon, and for the use of keys.

A successful change is in the audit log before its response is sent. Failures are recorded too, but
limited: a flood becomes a few records with a count. Work inside a session (commands, files,
networks) is recorded by the engine. If a record cannot be written because the disk is full, the log
of the daemon has it, and the change stays. Neither keys nor bodies are ever stored.
"""

from __future__ import annotations

import json
import logging
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import PolicyDenied, SandkastenError, Unauthorized
from sandkasten.model.access.tenancy import Principal
from sandkasten.model.audit_records import AuditRow
from sandkasten.model.ids import is_sandbox_id
from sandkasten.model.redaction import excerpt
from sandkasten_server.api.dashboard.browser_logins import PROOF_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from starlette.responses import Response

    from sandkasten.ports import Clock
    from sandkasten_server.api.dashboard.browser_logins import Credentials
    from sandkasten_server.api.request.http_call import Call
    from sandkasten_server.api.route import Route
    from sandkasten_server.api.server_context import Stores

log = logging.getLogger("sandkasten.audit")
_NOBODY: Final = Principal(tenant="", scopes=frozenset())
_QUIET: Final = frozenset({"GET", "HEAD", "OPTIONS", "WS"})
_PLACE = re.compile(r"\{([a-z_]+)(?::path)?\}\Z")
# Requests inside a session whose effect outlives it or changes what it is.
_INSIDE: Final = frozenset(
    {"pause", "resume", "snapshots", "fork", "files/stage", "files/publish", "previews"}
)
# One-shots and tools work in sandboxes, as commands do. A ticket opens a terminal or a port.
_UNCHANGING: Final = frozenset({"run", "tools", "tickets"})
_RUNS: Final = frozenset({"runs", "workflow-runs"})
_READS: Final = frozenset({"GET", "HEAD"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
_OWN_VERBS: Final = {("session", "delete"): "destroy", ("key", "delete"): "revoke"}
# Where the answer to a create names what was made. Never `key`: that may be a secret.
_NAMED: Final = ("id", "sandboxID", "file_key", "name", "workspace_id")
_KEY_HEADERS: Final = frozenset({"authorization", "x-api-key", PROOF_HEADER})
_MAX_TARGET: Final = 512
_MAX_ANSWER: Final = 1 << 16
# Rows in a minute for one kind of refusal; the next one has the number of those left out.
_MOST_REFUSED: Final = 20
_WINDOW_S: Final = 60.0
_MOST_KINDS: Final = 1000
# A key is recorded when it is first used from an address, and then once in this time.
_KEY_USE_S: Final = 3600.0
_MOST_KEYS: Final = 10_000


# Asked of every request; the routes are few.
@lru_cache(maxsize=1024)
def action_of(method: str, path: str) -> str | None:
    """Return `session.create`, `key.revoke`, … for a route; None if it changes nothing."""
    parts = path.removeprefix("/v1").split("/")[1:]
    if method in _QUIET or parts[0] in _UNCHANGING or parts[-1] == "validate":
        return None
    if parts == ["execute"]:
        return "run.create"
    if not path.startswith("/v1/") and parts[0] not in _RUNS:
        return None
    words = [part for part in parts[1:] if _PLACE.match(part) is None]
    if parts[0] == "sessions" and len(parts) > 2 and "/".join(words) not in _INSIDE:
        return None
    noun = parts[0].removesuffix("s")
    verb = ".".join(words) or _VERBS.get(method, method.lower())
    return f"{noun}.{_OWN_VERBS.get((noun, verb), verb)}"


class Auditor:
    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._stores = stores
        self._clock = clock
        self._seen: dict[tuple[str, str, str], _Window] = {}
        self._used: dict[tuple[str, str], _Window] = {}

    def used(self, principal: Principal, scope: MutableMapping[str, Any], request_id: str) -> None:
        """Record the use of a key: the first from an address, then one record an hour with the
        number of requests.
        """
        if self._stores.audit is None or principal.key_id is None:
            return
        now = self._clock.boottime()
        who = (principal.key_id, _address(scope))
        window = self._used.get(who)
        if window is not None and now - window.began < _KEY_USE_S:
            window.rows += 1
            return
        if window is None and len(self._used) >= _MOST_KEYS:
            self._used.clear()
        self._used[who] = _Window(now)
        detail = {"address": who[1]}
        if window is not None:
            detail["requests_before"] = str(window.rows)
        self._stores.audit.record(
            self._row(principal, "key.use", who[0], "ok", request_id, detail, kind="key")
        )

    async def changed(self, call: Call, route: Route, response: Response | None) -> None:
        action = _action(call.connection.scope, route)
        if action is None or self._stores.audit is None:
            return
        target = _in_path(call.connection.scope) or _in_answer(response)
        # An answer that streams reports its end later; until then, only its start is known.
        outcome = "ok" if response is not None and hasattr(response, "body") else "accepted"
        detail = {name: excerpt(text, _MAX_TARGET) for name, text in call.recorded.items()}
        row = self._row(call.principal, action, target, outcome, call.request_id, detail)
        await self._write(row)

    async def refused(
        self, scope: MutableMapping[str, Any], request_id: str, error: SandkastenError
    ) -> None:
        if self._stores.audit is None:
            return
        principal = scope.get("sandkasten.principal", _NOBODY)
        kind, detail = "change", {}
        if isinstance(error, Unauthorized):
            if _shows_no_key(scope):
                return
            kind, action, target = "key", "auth.refuse", _address(scope)
        else:
            route: Route | None = scope.get("sandkasten.route")
            verb = None if route is None else _action(scope, route)
            if verb is not None:
                action, target = verb, _in_path(scope)
            elif isinstance(error, PolicyDenied) and scope.get("method") in _READS:
                # What changes something is recorded where it is decided.
                kind, action, target = "policy", "policy.refuse", _in_path(scope)
                detail["message"] = excerpt(error.message, _MAX_TARGET)
            else:
                return
        left_out = self._admit((principal.tenant, action, error.code))
        if left_out is not None:
            if left_out:
                detail["left_out"] = str(left_out)
            row = self._row(principal, action, target, error.code, request_id, detail, kind=kind)
            await self._write(row)

    def _admit(self, kind: tuple[str, str, str]) -> int | None:
        """Return how many rows were left out since the last one; None to leave this one out too."""
        now = self._clock.boottime()
        window = self._seen.get(kind)
        if window is None or now - window.began >= _WINDOW_S:
            if window is None and len(self._seen) >= _MOST_KINDS:
                self._seen.clear()
            left_out = 0 if window is None else window.left_out
            self._seen[kind] = _Window(now)
            return left_out
        window.rows += 1
        if window.rows > _MOST_REFUSED:
            window.left_out += 1
            return None
        return 0

    def _row(
        self,
        principal: Principal,
        action: str,
        target: str,
        outcome: str,
        request_id: str,
        detail: Mapping[str, str] | None = None,
        *,
        kind: str = "change",
    ) -> AuditRow:
        return AuditRow(
            seq=0,
            at=self._clock.now(),
            tenant=principal.tenant,
            key_id=principal.key_id,
            action=action,
            target=target[:_MAX_TARGET],
            outcome=outcome,
            request_id=request_id,
            detail=detail or {},
            kind=kind,
            session_id=target if is_sandbox_id(target) else None,
        )

    async def _write(self, row: AuditRow) -> None:
        assert self._stores.audit is not None
        try:
            await self._stores.audit.record_lasting(row)
        except SandkastenError as exc:
            log.error(  # noqa: TRY400  (why it failed is in its code)
                "audit.unwritten",
                extra={
                    "sandkasten": {
                        "tenant": row.tenant,
                        "key_id": row.key_id,
                        "action": row.action,
                        "target": row.target,
                        "outcome": row.outcome,
                        "request_id": row.request_id,
                        "why": exc.code,
                    }
                },
            )


def _shows_no_key(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request without a principal came without anything that could be one, as the
    first request of a login page does.
    """
    credentials: Credentials | None = scope.get("sandkasten.credentials")
    if credentials is None or "sandkasten.principal" in scope:
        # A ticket, or what a route for requests without a principal has checked.
        return False
    return _KEY_HEADERS.isdisjoint(credentials.headers)


def _action(scope: MutableMapping[str, Any], route: Route) -> str | None:
    return route.action or action_of(scope.get("method", "WS"), route.path)


class _Window:
    __slots__ = ("began", "left_out", "rows")

    def __init__(self, began: float) -> None:
        self.began = began
        self.rows = 1
        self.left_out = 0


def _in_path(scope: MutableMapping[str, Any]) -> str:
    parameters = scope.get("path_params") or {}
    return str(next(iter(parameters.values()), ""))


def _in_answer(response: Response | None) -> str:
    body = getattr(response, "body", b"")
    if not body or len(body) > _MAX_ANSWER:
        return ""
    try:
        fields = json.loads(bytes(body))
    except ValueError:
        return ""
    named = (fields.get(name) for name in _NAMED) if isinstance(fields, dict) else ()
    return next((value for value in named if isinstance(value, str)), "")


def _address(scope: MutableMapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
