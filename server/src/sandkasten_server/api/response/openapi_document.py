"""The OpenAPI document, generated only from the route table. Pure.

The application serves the same rows, so the document and the behaviour cannot differ.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import models_json_schema

from sandkasten import errors
from sandkasten.model import field_patterns as forms
from sandkasten_server.api.error_responses import STATUS
from sandkasten_server.api.request.field_schemas import AT_MOST_ONE, EXACTLY_ONE, text_schema
from sandkasten_server.api.route import EVENTS, JSON, Answer, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

_REF: Final = "#/components/schemas/{model}"
_ANY: Final = ("get", "head", "post", "put", "patch", "delete", "options")
_PLACE: Final = re.compile(r"\{([a-z_]+)(?::path)?\}")
_NOTES: Final = {
    "eid": "Id of a command.",
    "run_id": "Id of a run, `run_` and hex digits.",
    "port": "A TCP port inside the sandbox.",
}
# What a placeholder stands for, by the path before it.
_PLACES: Final = {
    "/v1/sessions/{id}/shells/{name}": ("The name of a persistent shell.", forms.SHELL_NAME),
    "/v1/sessions/{id}": ("Id of a session, `sbx_` and hex digits.", forms.SANDBOX_ID),
    "/v1/snapshots/{id}": (
        "Id or name of a snapshot.",
        f"(?:{forms.SNAPSHOT_ID}|{forms.WORKSPACE_NAME})",
    ),
    "/v1/workspaces/{id}": ("Name of a workspace.", forms.WORKSPACE_NAME),
    "/v1/keys/{id}": ("Id of a key, `key_` and hex digits.", forms.KEY_ID),
    "/v1/images/{name:path}": ("Name or id of an image.", forms.IMAGE_NAME),
}
# Statuses beside the one of a class: where and how a request is malformed decides.
_INVALID: Final = {
    400: "INVALID_REQUEST: malformed, or not possible",
    408: "INVALID_REQUEST: the request arrived too slowly",
    415: "INVALID_REQUEST: wrong content type",
    422: "INVALID_REQUEST: a field is invalid; the message names it",
    431: "PAYLOAD_TOO_LARGE: its headers",
}
_EVERYWHERE: Final = {
    400: _INVALID[400],
    403: "FORBIDDEN: the key lacks the scope, or a rule forbids it",
    421: "FORBIDDEN: the Host header names another server",
    422: _INVALID[422],
    429: "QUOTA_EXCEEDED: too many requests, or sessions, or too much memory",
    431: _INVALID[431],
    500: "INTERNAL_ERROR: a fault of the daemon",
    503: "BUSY, BACKEND_UNAVAILABLE: try again",
}
_KEYED: Final = {401: "UNAUTHORIZED: no valid key"}
_BODIED: Final = {
    408: _INVALID[408],
    413: "PAYLOAD_TOO_LARGE: the body",
    415: _INVALID[415],
}
_USUAL: Final = {**_EVERYWHERE, **_KEYED, **_BODIED}
_HEADER_SCHEMAS: Final = {"Idempotency-Key": {"pattern": forms.shown_form(forms.HEADER_KEY)}}
_RULES: Final = {EXACTLY_ONE: "Takes exactly one of", AT_MOST_ONE: "Takes at most one of"}
_HEADERS: Final = {
    "x-request-id": {
        "description": "Names the request in the log; a client's own `X-Request-Id` is kept.",
        "schema": {"type": "string"},
    }
}


class ErrorBody(Answer):
    """The body of every failing response."""

    error_code: str
    error: str
    code: str
    message: str
    hint: str
    retryable: bool
    details: dict[str, Any]
    request_id: str


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    names, schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    failures: dict[str, Any] = {}
    for route in routes:
        item = paths.setdefault(_PLACE.sub(r"{\1}", route.path), {})
        for method in _methods(route):
            # A path that is also a WebSocket is described by what plain HTTP finds there.
            item.setdefault(method, _operation(route, method, names, failures))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sandkasten",
            "version": version,
            "summary": "Stateful sandboxes for agents over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "tags": [{"name": name} for name in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": dict(sorted(failures.items())),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key. On loopback none is needed unless one is set.",
                }
            },
        },
    }


def _methods(route: Route) -> tuple[str, ...]:
    if route.method == "ANY":
        return _ANY
    return ("get",) if route.method == "WS" else (route.method.lower(),)


def _operation(
    route: Route,
    method: str,
    names: Mapping[type[BaseModel], str],
    failures: dict[str, Any],
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route, method),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route, names, failures),
    }
    about = [route.description] if route.description else []
    for rule, words in _RULES.items():
        if (names_ := _query_schema(route).get(rule)) is not None:
            operation[rule] = names_
            about.append(f"{words} `{'` and `'.join(names_)}`.")
    if about:
        operation["description"] = " ".join(about)
    if route.scope is None:
        operation["security"] = []
    elif route.scope != "any key":
        operation["x-scope"] = route.scope
    if route.method == "WS":
        operation["x-websocket"] = True
    if (route.body is not None or route.reads_body) and method not in ("get", "head"):
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {kind: _taken(route, kind, names) for kind in route.takes},
        }
    return operation


def _operation_id(route: Route, method: str) -> str:
    words = [_PLACE.sub(r"\1", part) for part in route.path.split("/") if part]
    return "_".join([method, *words]).replace(".", "_").replace("-", "_")


def _parameters(route: Route) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for name in _PLACE.findall(route.path):
        parameter: dict[str, Any] = {"name": name, "in": "path", "required": True}
        parameter["schema"] = {"type": "string", "minLength": 1}
        if name in _NOTES:
            parameter["description"] = _NOTES[name]
        for start, (text, form) in _PLACES.items():
            if route.path.startswith(start) and f"{{{name}" in start:
                parameter["description"] = text
                parameter["schema"]["pattern"] = forms.shown_form(form)
        parameters.append(parameter)
    if route.query is not None:
        schema = _query_schema(route)
        needed = schema.get("required", ())
        for name, about in schema.get("properties", {}).items():
            parameter = {"name": name, "in": "query", "required": name in needed, "schema": about}
            if "description" in about:
                parameter["description"] = about["description"]
            parameters.append(parameter)
    parameters += [
        {
            "name": name,
            "in": "header",
            "description": text,
            "schema": {"type": "string", **_HEADER_SCHEMAS.get(name, {})},
        }
        for name, text in route.headers.items()
    ]
    return parameters


def _query_schema(route: Route) -> dict[str, Any]:
    return {} if route.query is None else text_schema(route.query)


def _taken(route: Route, kind: str, names: Mapping[type[BaseModel], str]) -> dict[str, Any]:
    if kind == JSON and route.body is not None:
        return {"schema": {"$ref": _REF.format(model=names[route.body])}}
    if kind == "multipart/form-data":
        return {
            "schema": {
                "type": "object",
                "properties": dict(route.form),
                "required": ["file"],
                "additionalProperties": False,
            }
        }
    return {"schema": {"type": "string", "format": "binary"}}


def _responses(
    route: Route, names: Mapping[type[BaseModel], str], failures: dict[str, Any]
) -> dict[str, Any]:
    status = 101 if route.method == "WS" else route.status
    responses: dict[str, Any] = {str(status): _good(route, status, route.answer, names)}
    for other, model in route.also.items():
        responses[str(other)] = _good(route, other, model, names)
    meanings: dict[int, list[str]] = {code: [text] for code, text in _EVERYWHERE.items()}
    more: list[Mapping[int, str]] = []
    if route.scope is not None:
        more.append(_KEYED)
    if route.body is not None or route.reads_body:
        more.append(_BODIED)
    for several in more:
        for code, text in several.items():
            meanings.setdefault(code, []).append(text)
    for kind in route.errors:
        for code in _statuses(kind):
            if not any(kind.code in text for text in meanings.get(code, ())):
                meanings.setdefault(code, []).append(kind.code)
    for code, text in route.fails.items():
        meanings.setdefault(code, []).append(f"INVALID_REQUEST: {text}")
    for code in sorted(meanings):
        name = _named(code, meanings[code])
        failures.setdefault(name, _bad(code, meanings[code]))
        responses[str(code)] = {"$ref": f"#/components/responses/{name}"}
    if route.method == "ANY":
        responses["default"] = {"description": "Whatever the server inside answers."}
    return responses


def _good(
    route: Route, status: int, model: type[Answer] | None, names: Mapping[type[BaseModel], str]
) -> dict[str, Any]:
    response: dict[str, Any] = {"description": route.summary, "headers": _HEADERS}
    if status == 304:
        response["description"] = "The client's copy is current."
        return response
    if route.method == "WS":
        response["description"] = "The connection is a WebSocket now."
        return response
    content: dict[str, Any] = {}
    for kind in route.gives:
        if kind == JSON:
            schema: dict[str, Any] = {}
            if model is not None:
                schema = {"$ref": _REF.format(model=names[model])}
                if route.array:
                    schema = {"type": "array", "items": schema}
            content[kind] = {"schema": schema}
        elif kind == EVENTS:
            # A schema would be about one event, for some readers, and about all for others.
            content[kind] = {"schema": {}}
        elif kind.startswith("text/"):
            content[kind] = {"schema": {"type": "string"}}
        else:
            content[kind] = {"schema": {"type": "string", "format": "binary"}}
    response["content"] = content
    return response


def _bad(code: int, meanings: Iterable[str]) -> dict[str, Any]:
    headers: dict[str, Any] = dict(_HEADERS)
    if code in (429, 503):
        headers["retry-after"] = {"description": "Seconds.", "schema": {"type": "string"}}
    if code == 401:
        headers["www-authenticate"] = {"schema": {"type": "string"}}
    return {
        "description": "; ".join(meanings),
        "headers": headers,
        "content": {JSON: {"schema": {"$ref": _REF.format(model="ErrorBody")}}},
    }


def _named(code: int, meanings: Iterable[str]) -> str:
    """Name a response by its status and meaning, so that equal ones are shared."""
    codes = sorted(
        {word for text in meanings for word in re.findall(r"[A-Z]+(?:_[A-Z]+)+|BUSY", text)}
    )
    usual = sorted(re.findall(r"[A-Z]+(?:_[A-Z]+)+|BUSY", _USUAL.get(code, "")))
    return f"Error{code}" if codes == usual else "_".join([f"Error{code}", *codes])


def _statuses(kind: type[errors.SandkastenError]) -> tuple[int, ...]:
    if issubclass(kind, errors.QuotaExceeded):
        return (429, 507)
    for base in kind.__mro__:
        if base in STATUS:
            return (STATUS[base],)
    return (500,)


def _schemas(
    routes: Iterable[Route],
) -> tuple[dict[type[BaseModel], str], dict[str, Any]]:
    models: dict[type[BaseModel], None] = {ErrorBody: None}
    for route in routes:
        for model in (route.body, route.answer, *route.also.values()):
            if model is not None:
                models[model] = None
    keyed, definitions = models_json_schema(
        [(schema_model, "validation") for schema_model in models], ref_template=_REF
    )
    names = {model: keyed[model, "validation"]["$ref"].rpartition("/")[2] for model in models}
    return names, dict(sorted(definitions["$defs"].items()))
