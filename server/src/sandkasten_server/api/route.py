"""Routes as values: request, scope and response; and the tree of names that finds a path's route.

The OpenAPI document and the running application are both built from them, so they always agree.
In a path, `{name}` matches one name, `{name:path}` everything that follows. A literal name wins
over a placeholder, and one name over everything that follows.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from starlette.responses import Response

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import CoreSchema

    from sandkasten.errors import SandkastenError
    from sandkasten.model.access.tenancy import Scope
    from sandkasten_server.api.request.authentication import Doorkeeper
    from sandkasten_server.api.request.http_call import Call

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
_PLACE = re.compile(r"\{([a-z_]+)(:path)?\}\Z")
# No route of ours is deeper; what a client appends beyond is the rest of the last one.
_DEEPEST = 12


def _bound_check(schema: Any) -> None:
    """Bound every list and object, and make its check stop at the first error."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("type") in MAX_LENGTHS:
                node["fail_fast"] = True
                node.setdefault("max_length", MAX_LENGTHS[node["type"]])
            pending += [value for name, value in node.items() if name != "metadata"]
        elif isinstance(node, list | tuple):
            pending += node


class _Checked(BaseModel):
    """A model whose check ends at the first error, or after one for each field.

    An error for every wrong element would take seconds for a body of a megabyte, and a hundred
    times its memory; only one is reported.
    """

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, value: object) -> object:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        unknown = next((name for name in value if name not in cls.model_fields), None)
        accepted = {name: value[name] for name in cls.model_fields if name in value}
        return accepted if unknown is None else {unknown: value[unknown], **accepted}

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
    """Its name in the audit, where the path does not contain it."""
    reads_protocols: bool = False
    """Whether it is a WebSocket: its subprotocols may have the credentials of a page."""
    dialect: Dialect | None = None
    """None: keys in Authorization, and the error body of this API."""

    @property
    def extends(self) -> Activity:
        return self.activity or ("none" if self.method in ("GET", "HEAD") else "work")


class _Node:
    __slots__ = ("literal", "one", "rest", "routes")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.one: _Node | None = None
        self.rest: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Paths:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        names: list[str] = []
        for part in route.path.split("/")[1:]:
            place = _PLACE.match(part)
            if place is None:
                node = node.literal.setdefault(part, _Node())
                continue
            names.append(place[1])
            if place[2]:
                node.rest = node = node.rest or _Node()
            else:
                node.one = node = node.one or _Node()
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} is there twice")
        node.routes[route.method] = (route, tuple(names))

    def find(self, path: str, method: str) -> tuple[Route, dict[str, str]] | frozenset[str]:
        """Return the route and the values of its placeholders, or the methods of the path."""
        parts = path.split("/", _DEEPEST)[1:]
        others: set[str] = set()
        match = _walk(self._root, parts, 0, [], method, others)
        if match is None:
            return frozenset(others)
        (route, names), values = match
        return route, dict(zip(names, values, strict=True))


def _walk(
    node: _Node, parts: list[str], at: int, values: list[str], method: str, others: set[str]
) -> tuple[tuple[Route, tuple[str, ...]], list[str]] | None:
    if at == len(parts):
        entry = _of(node, method)
        if entry is not None:
            return entry, values
        others.update(node.routes)
        return None
    part = parts[at]
    child = node.literal.get(part)
    if child is not None:
        below = _walk(child, parts, at + 1, values, method, others)
        if below is not None:
            return below
    if node.one is not None and part:
        below = _walk(node.one, parts, at + 1, [*values, part], method, others)
        if below is not None:
            return below
    if node.rest is not None:
        entry = _of(node.rest, method)
        if entry is not None:
            return entry, [*values, "/".join(parts[at:])]
        others.update(node.rest.routes)
    return None


def _of(node: _Node, method: str) -> tuple[Route, tuple[str, ...]] | None:
    entry = node.routes.get(method)
    if entry is None and method == "HEAD":
        entry = node.routes.get("GET")
    if entry is None and method != "WS":
        entry = node.routes.get("ANY")
    return entry
