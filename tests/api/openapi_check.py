"""Check every answer that a test sees against the OpenAPI document.

`Daemon.ask` calls it, so an answer that violates the document fails the test that requested it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema_rs import Draft202012Validator

from sandkasten_server.api.response.openapi_document import document
from sandkasten_server.api.routes.route_table import route_table

# What stands before any route: no such path, no such method.
_BEFORE = {404, 405}


@cache
def described() -> dict[str, Any]:
    return document(route_table().routes, "test")


@cache
def _templates() -> list[tuple[re.Pattern[str], str]]:
    found = []
    for path in described()["paths"]:
        rest = any(
            re.sub(r"(:path)?\}", "}", route.path) == path and ":path}" in route.path
            for route in route_table().routes
        )
        pattern = re.sub(r"\\\{[a-z_]+\\\}", "[^/]+", re.escape(path))
        if rest:
            pattern = pattern.removesuffix("[^/]+") + ".*"
        found.append((re.compile(pattern + r"\Z"), path))
    # Placeholders last: a literal name wins.
    return sorted(found, key=lambda one: one[1].count("{"))


@cache
def _validator(pointer: str) -> Draft202012Validator:
    about: Any = described()
    for part in json.loads(pointer):
        about = about[part]
    return Draft202012Validator({**about, "components": described()["components"]})


def check(method: str, url: str, status: int, kind: str, raw: bytes) -> None:
    """Raise AssertionError when the document does not allow this answer."""
    path = urlsplit(url).path
    template = next((known for seen, known in _templates() if seen.match(path)), None)
    operation = None
    if template is not None:
        operation = described()["paths"][template].get(method.lower())
        if operation is None and method == "HEAD":
            operation = described()["paths"][template].get("get")
    if operation is None:
        assert status in _BEFORE or status < 100 or status >= 400, f"{method} {path}: {status}"
        return
    responses = operation["responses"]
    if "default" in responses:
        return
    assert str(status) in responses or status in _BEFORE, f"{method} {template} answered {status}"
    kind = kind.partition(";")[0].strip()
    where = ["paths", template, method.lower(), "responses", str(status)]
    found = responses.get(str(status), {})
    if "$ref" in found:
        where = ["components", "responses", found["$ref"].rpartition("/")[2]]
        found = described()["components"]["responses"][where[-1]]
    content = found.get("content", {})
    if method == "HEAD" or not content or "*/*" in content:
        return
    assert kind in content or "*/*" in content, f"{method} {template} answered {status} as {kind}"
    if kind == "application/json" and str(status) in responses:
        pointer = json.dumps([*where, "content", kind, "schema"])
        for error in _validator(pointer).iter_errors(json.loads(raw)):
            raise AssertionError(f"{method} {template} {status}: {error.message[:400]}")
