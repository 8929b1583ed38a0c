"""Logins of browsers, and tickets for their WebSockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sandkasten.errors import PolicyDenied, Unauthorized
from sandkasten_server.api.dashboard.browser_logins import TICKET_S, Credentials, login_cookie
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Body, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten.model.access.tenancy import Principal
    from sandkasten_server.api.request.http_call import Call


class LoginBody(Body):
    api_key: Annotated[str, Field(min_length=1, max_length=8192)]


class Identity(Answer):
    tenant: str
    scopes: list[str]
    key_id: str | None = Field(description="Null for the configured key, and without a key.")
    requires_key: bool = Field(description="Whether the daemon refuses requests without a key.")


class LoginAnswer(Identity):
    proof: str = Field(description="To send as X-Sandkasten-Login with the cookie.")
    expires_in_seconds: float


class TicketAnswer(Answer):
    ticket: str = Field(description="Offer the subprotocol sandkasten.ticket.<ticket>.")
    expires_in_seconds: float


class LogoutAnswer(Answer):
    ok: bool


async def log_in(call: Call) -> Response:
    body = await call.body(LoginBody)
    server = call.server
    headers = {"authorization": f"Bearer {body.api_key}"}
    origin = call.connection.headers.get("origin")
    if origin is None:
        raise PolicyDenied(
            "a login is for pages of the daemon", hint="send the key in Authorization instead"
        )
    try:
        principal = server.doorkeeper.admit(headers, local=False)
    except Unauthorized:
        if not await server.doorkeeper.renew(headers):
            raise
        principal = server.doorkeeper.admit(headers, local=False)
    # The audit names the key.
    call.principal = principal
    login = server.logins.begin(headers["authorization"], server.clock.boottime())
    fields = {
        **_identity(call, principal),
        "proof": login.proof,
        "expires_in_seconds": login.expires_in_s,
    }
    response = answer(fields)
    cookie = login_cookie(
        login.cookie, lasts_s=login.expires_in_s, tls=origin.startswith("https://")
    )
    response.headers["set-cookie"] = cookie
    response.headers["cache-control"] = "no-store"
    return response


async def identity(call: Call) -> Response:
    return answer(_identity(call, call.principal))


async def log_out(call: Call) -> Response:
    credentials: Credentials = call.connection.scope["sandkasten.credentials"]
    call.server.logins.end(credentials.login)
    response = answer({"ok": True})
    for tls in (False, True):
        response.headers.append("set-cookie", login_cookie("", lasts_s=0, tls=tls))
    return response


async def ticket(call: Call) -> Response:
    credentials: Credentials = call.connection.scope["sandkasten.credentials"]
    issued = call.server.logins.issue(credentials, call.server.clock.boottime())
    return answer({"ticket": issued, "expires_in_seconds": TICKET_S}, 201)


def _identity(call: Call, principal: Principal) -> dict[str, object]:
    return {
        "tenant": principal.tenant,
        "scopes": sorted(principal.scopes),
        "key_id": principal.key_id,
        "requires_key": not call.server.doorkeeper.is_open,
    }


ROUTES = (
    Route(
        "POST",
        "/v1/login",
        log_in,
        "Exchange a key for a cookie",
        "keys",
        scope=None,
        body=LoginBody,
        answer=LoginAnswer,
        errors=(PolicyDenied, Unauthorized),
        description=(
            "For pages of the daemon. The cookie is hidden from scripts, and is worth nothing "
            "without the proof. It ends after 12 hours, with its key, and with the daemon."
        ),
    ),
    Route(
        "GET",
        "/v1/login",
        identity,
        "Tenant and scopes of the key or login of this request",
        "keys",
        scope="any key",
        answer=Identity,
    ),
    Route("DELETE", "/v1/login", log_out, "Log out", "keys", scope="any key", answer=LogoutAnswer),
    Route(
        "POST",
        "/v1/tickets",
        ticket,
        "Get a ticket for one WebSocket",
        "keys",
        answer=TicketAnswer,
        status=201,
        description="It admits one WebSocket within 30 seconds, as the client that asked for it.",
    ),
)
