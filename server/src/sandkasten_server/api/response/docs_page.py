"""The OpenAPI document as one HTML page: no external resources, no script, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882}
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1rem}
h1{margin-bottom:0}h2{margin-top:2.5rem;border-bottom:1px solid var(--line)}
code,pre{font:0.875rem/1.45 ui-monospace,monospace}
pre{background:var(--soft);padding:.75rem;overflow:auto;border-radius:6px}
details{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:0 .75rem}
summary{padding:.5rem 0;cursor:pointer}summary b{display:inline-block;min-width:4.5rem}
summary:focus-visible,a:focus-visible{outline:2px solid Highlight;outline-offset:2px}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{text-align:left;vertical-align:top;border-top:1px solid var(--line)}
td,th{padding:.25rem .75rem .25rem 0}
nav a{margin-right:1rem}
"""
CSP: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


def page(document: Mapping[str, Any]) -> bytes:
    return "\n".join(_lines(document)).encode()


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    shared = document["components"].get("responses", {})
    tags = [tag["name"] for tag in document["tags"]]
    yield "<!doctype html><html lang=en><head><meta charset=utf-8>"
    yield '<meta name=viewport content="width=device-width, initial-scale=1">'
    yield f"<title>{_e(info['title'])} API</title><style>{_STYLE}</style></head><body>"
    yield f"<header><h1>{_e(info['title'])}</h1><p>{_e(info['summary'])} {_e(info['version'])}"
    yield '· <a href="/openapi.json">openapi.json</a></p><nav>'
    yield from (f'<a href="#{_e(tag)}">{_e(tag)}</a>' for tag in [*tags, "schemas"])
    yield "</nav></header><main>"
    for tag in tags:
        yield f'<section><h2 id="{_e(tag)}">{_e(tag)}</h2>'
        for path, item in document["paths"].items():
            for method, about in item.items():
                if tag in about["tags"]:
                    yield from _operation(path, method, about, shared)
        yield "</section>"
    yield '<section><h2 id="schemas">schemas</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield f'<details id="schema-{_e(name)}"><summary><code>{_e(name)}</code></summary>'
        yield from _fields(schema)
        yield "</details>"
    yield "</section></main></body></html>"


def _operation(
    path: str, method: str, about: Mapping[str, Any], shared: Mapping[str, Any]
) -> Iterator[str]:
    shown = "WS" if about.get("x-websocket") else method.upper()
    yield f"<details><summary><b>{_e(shown)}</b> <code>{_e(path)}</code> – {_e(about['summary'])}"
    yield "</summary>"
    if about.get("description"):
        yield f"<p>{_e(about['description'])}</p>"
    scope = about.get("x-scope")
    yield f"<p>Needs the scope <code>{_e(scope)}</code>.</p>" if scope else "<p>Needs no key.</p>"
    if about["parameters"]:
        yield "<table><tr><th>parameter<th>in<th>type<th>"
        for parameter in about["parameters"]:
            text = parameter.get("description", "")
            needed = (
                " (required)" if parameter.get("required") and parameter["in"] != "path" else ""
            )
            yield f"<tr><td><code>{_e(parameter['name'])}</code><td>{_e(parameter['in'])}"
            yield f"<td>{_type(parameter['schema'])}<td>{_e(text + needed)}"
        yield "</table>"
    if "requestBody" in about:
        yield "<p>Body: " + _content(about["requestBody"]["content"]) + "</p>"
    yield "<table><tr><th>status<th>answer<th>"
    for status, declared in about["responses"].items():
        response = shared[declared["$ref"].rpartition("/")[2]] if "$ref" in declared else declared
        yield f"<tr><td>{_e(status)}<td>{_content(response.get('content', {}))}"
        yield f"<td>{_e(response['description'])}"
    yield "</table></details>"


def _content(content: Mapping[str, Any]) -> str:
    return ", ".join(
        f"<code>{_e(kind)}</code> {_type(media.get('schema', {}))}"
        for kind, media in content.items()
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    if schema.get("description"):
        yield f"<p>{_e(schema['description'])}</p>"
    if "properties" not in schema:
        yield f"<pre>{_e(json.dumps(schema, indent=1))}</pre>"
        return
    needed = schema.get("required", ())
    yield "<table><tr><th>field<th>type<th>"
    for name, field in schema["properties"].items():
        mark = " *" if name in needed else ""
        yield f"<tr><td><code>{_e(name)}</code>{mark}<td>{_type(field)}"
        yield f"<td>{_e(field.get('description', ''))}"
    yield "</table>"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = _e(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(choice) for choice in schema["anyOf"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return "array of " + _type(schema.get("items", {}))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return "object of " + _type(schema["additionalProperties"])
    return _e(str(kind))


def _e(text: object) -> str:
    return escape(str(text), quote=True)
