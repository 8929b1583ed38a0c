"""Routes as values: request, scope and response.

The OpenAPI document and the running application are both built from them, so they always agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

if TYPE_CHECKING:
    from sandkasten.api.request.http_call import Call
    from sandkasten.errors import SandkastenError
    from sandkasten.model.access.tenancy import Scope

Handler = Callable[["Call"], Awaitable[Response | None]]
"""A WebSocket is its own answer; every other route gives one."""
Method = Literal["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "ANY", "WS"]
JSON = "application/json"
EVENTS = "text/event-stream"


class Body(BaseModel):
    """A request body: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Query(BaseModel):
    """Query parameters: strings, from which numbers are parsed."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Answer(BaseModel):
    """A response, for the document; fields may be added later."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    method: Method
    path: str
    run: Handler
    summary: str
    tag: str
    scope: Scope | None = "sessions"
    """None: any client."""
    body: type[Body] | None = None
    query: type[Query] | None = None
    takes: tuple[str, ...] = (JSON,)
    """Content types of the body, where there is one."""
    reads_body: bool = False
    """A body that no schema describes (a stream of bytes, a form)."""
    body_required: bool = True
    answer: type[Answer] | None = None
    array: bool = False
    """The answer is an array of them."""
    gives: tuple[str, ...] = (JSON,)
    status: int = 200
    also: Mapping[int, type[Answer] | None] = field(default_factory=dict)
    """Other good statuses and what comes with them."""
    errors: tuple[type[SandkastenError], ...] = ()
    """Beyond those every route can answer with."""
    fails: Mapping[int, str] = field(default_factory=dict)
    """Statuses of InvalidRequest that only this route has, and what is wrong then."""
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers it understands beyond those every route does, and what they are for."""
