"""Finds the route of a path in a tree of names.

`{name}` matches one name, `{name:path}` everything that follows. A literal name wins over a
placeholder, and one name over everything that follows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.api.route import Route

_PLACE = re.compile(r"\{([a-z_]+)(:path)?\}\Z")
# No route of ours is deeper; what a client appends beyond is the rest of the last one.
_DEEPEST = 12


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
        found = _walk(self._root, parts, 0, [], method, others)
        if found is None:
            return frozenset(others)
        (route, names), values = found
        return route, dict(zip(names, values, strict=True))


def _walk(
    node: _Node, parts: list[str], at: int, values: list[str], method: str, others: set[str]
) -> tuple[tuple[Route, tuple[str, ...]], list[str]] | None:
    if at == len(parts):
        found = _of(node, method)
        if found is not None:
            return found, values
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
        found = _of(node.rest, method)
        if found is not None:
            return found, [*values, "/".join(parts[at:])]
        others.update(node.rest.routes)
    return None


def _of(node: _Node, method: str) -> tuple[Route, tuple[str, ...]] | None:
    found = node.routes.get(method)
    if found is None and method == "HEAD":
        found = node.routes.get("GET")
    if found is None and method != "WS":
        found = node.routes.get("ANY")
    return found
