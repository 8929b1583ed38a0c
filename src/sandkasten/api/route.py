"""Routes as values: request, scope and response.

The OpenAPI document and the running application are both built from them, so they always agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from starlette.responses import Response

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

    from sandkasten.api.request.authentication import Doorkeeper
    from sandkasten.api.request.http_call import Call
    from sandkasten.errors import SandkastenError
    from sandkasten.model.access.tenancy import Scope

Handler = Callable[["Call"], Awaitable[Response | None]]
"""A WebSocket is its own answer; every other route gives one."""
Activity = Literal["none", "input", "work"]
"""How a request extends the life of its session: none: never; input: when the client sends
something; work: always.
"""
Method = Literal["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "ANY", "WS"]
JSON = "application/json"
EVENTS = "text/event-stream"


MAX_LENGTHS: Final = {"list": 32_768, "dict": 4096}
"""Of a list or an object in a request, where its field does not say less."""


def _bound_check(schema: Any) -> None:
    """Bound every list and object, and make its check stop at the first error."""
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if one.get("type") in MAX_LENGTHS:
                one["fail_fast"] = True
                one.setdefault("max_length", MAX_LENGTHS[one["type"]])
            left += [value for name, value in one.items() if name != "metadata"]
        elif isinstance(one, list | tuple):
            left += one


class _Checked(BaseModel):
    """A model whose check ends at the first error, or after one for each field.

    An error for every wrong element would take seconds for a body of a megabyte, and a hundred
    times its memory; only one is told.
    """

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, value: object) -> object:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        unknown = next((name for name in value if name not in cls.model_fields), None)
        known = {name: value[name] for name in cls.model_fields if name in value}
        return known if unknown is None else {unknown: value[unknown], **known}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _bound_check(schema)
        return schema


class Body(_Checked):
    """A request body: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Query(_Checked):
    """Query parameters: strings, from which numbers are parsed."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Answer(BaseModel):
    """A response, for the document; fields may be added later."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the routes of another protocol authenticate and fail."""

    headers: Callable[[Doorkeeper, Mapping[str, str]], dict[str, str]]
    """Returns the headers of a request with the credential where the doorkeeper reads it."""
    problem: Callable[[SandkastenError, str], Response]
    """Returns the response for an error and the id of the request."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    method: Method
    path: str
    run: Handler
    summary: str
    tag: str
    scope: Scope | Literal["any key"] | None = "sessions"
    """None: any client, without a key too."""
    body: type[Body] | None = None
    query: type[Query] | None = None
    activity: Activity | None = None
    """None: `none` for GET and HEAD, and `work` for every other method."""
    takes: tuple[str, ...] = (JSON,)
    """Content types of the body, where there is one."""
    reads_body: bool = False
    """A body that no schema describes (a stream of bytes, a form)."""
    form: Mapping[str, Any] = field(default_factory=dict)
    """JSON Schemas of the fields of a form; `file` is required."""
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
    action: str | None = None
    """Its name in the audit, where the path does not tell it."""
    reads_protocols: bool = False
    """Of a WebSocket: its subprotocols may have the credentials of a page."""
    dialect: Dialect | None = None
    """None: keys in Authorization, and the error body of this API."""

    @property
    def extends(self) -> Activity:
        return self.activity or ("none" if self.method in ("GET", "HEAD") else "work")
