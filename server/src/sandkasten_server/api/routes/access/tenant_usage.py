"""What a tenant uses, next to the quota of the key that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from sandkasten.model.access.tenancy import QuotaUsage
from sandkasten.model.json_codec import to_json
from sandkasten_server.api.response.json_response import answer
from sandkasten_server.api.route import Answer, Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from sandkasten_server.api.request.http_call import Call


class Used(Answer):
    sessions: int
    memory_bytes: int
    disk_bytes: int
    network_connections: int = Field(description="Sum of the limits of open networks.")
    network_bandwidth_bps: int | None = Field(
        description="Sum of the limits of open networks; null if one of them has none."
    )
    network_bytes_today: int = Field(description="Bytes in and out of this day (UTC).")


class Usage(Answer):
    tenant: str
    quota: dict[str, int | float | None]
    used: Used


async def usage(call: Call) -> Response:
    tenant = call.principal.tenant
    used = await call.engine.quotas.usage(tenant)
    return answer(to_json(QuotaUsage(tenant, call.principal.quota, used)))


ROUTES = (
    Route(
        "GET",
        "/v1/usage",
        usage,
        "Show what the tenant uses, and the quota of the key",
        "keys",
        scope="sessions",
        answer=Usage,
        description="A quota of null means no limit.",
    ),
)
