"""Metrics, settings, version and the OpenAPI document of the daemon."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field
from starlette.responses import Response

from sandkasten.errors import NotFound
from sandkasten_server.api.response.docs_page import CSP, page
from sandkasten_server.api.response.json_response import answer, as_json
from sandkasten_server.api.response.openapi_document import document
from sandkasten_server.api.route import JSON, Answer, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandkasten_server.api.request.http_call import Call


class Version(Answer):
    version: str
    api: str
    backend: str


class SettingAnswer(Answer):
    name: str
    value: str | int | float | bool | list[str] | None = Field(description="Secrets are masked.")
    origin: str = Field(description="A flag, a variable, a file or the default.")


class Settings(Answer):
    settings: list[SettingAnswer]


async def version(call: Call) -> Response:
    return answer(
        {"version": call.server.facts.version, "api": "v1", "backend": call.engine.backend_name}
    )


async def settings(call: Call) -> Response:
    return answer({"settings": list(call.server.facts.settings)})


async def metrics(call: Call) -> Response:
    if call.server.facts.metrics is None:
        raise NotFound("metrics are turned off", hint="turn them on with telemetry.metrics")
    census, network = await call.engine.census(), await call.engine.network.totals()
    text, kind = call.server.facts.metrics.render(census, network)
    return Response(text, media_type=kind)


class _Documents(NamedTuple):
    openapi: bytes
    page: bytes


class ApiDocuments:
    """The OpenAPI document and its page, made once: they take long, and are served without a key.

    `described` returns the routes in them.
    """

    def __init__(self, described: Callable[[], Sequence[Route]]) -> None:
        self._described = described
        self._by_version: dict[str, _Documents] = {}
        self._making = threading.Lock()

    async def openapi(self, call: Call) -> Response:
        documents = await self._of(call.server.facts.version)
        return Response(documents.openapi, media_type=JSON)

    async def docs(self, call: Call) -> Response:
        documents = await self._of(call.server.facts.version)
        return Response(
            documents.page,
            media_type="text/html",
            headers={
                "content-security-policy": CSP,
                "referrer-policy": "no-referrer",
                "x-frame-options": "DENY",
            },
        )

    async def _of(self, version: str) -> _Documents:
        documents = self._by_version.get(version)
        return await asyncio.to_thread(self._make, version) if documents is None else documents

    def _make(self, version: str) -> _Documents:
        with self._making:
            if version not in self._by_version:
                openapi = document(self._described(), version)
                self._by_version[version] = _Documents(as_json(openapi), page(openapi))
        return self._by_version[version]


def routes(described: Callable[[], Sequence[Route]]) -> tuple[Route, ...]:
    """Return the routes of this module; `described` returns those that the OpenAPI document has."""
    documents = ApiDocuments(described)
    return (
        Route(
            "GET",
            "/metrics",
            metrics,
            "Metrics for Prometheus",
            "system",
            scope="metrics",
            gives=("text/plain",),
            errors=(NotFound,),
        ),
        Route(
            "GET",
            "/openapi.json",
            documents.openapi,
            "This document",
            "system",
            scope=None,
            gives=(JSON,),
        ),
        Route(
            "GET",
            "/docs",
            documents.docs,
            "This document as a page",
            "system",
            scope=None,
            gives=("text/html",),
        ),
        Route(
            "GET",
            "/v1/settings",
            settings,
            "Settings of the daemon",
            "system",
            scope="admin",
            answer=Settings,
        ),
        Route(
            "GET",
            "/v1/version",
            version,
            "Version of the daemon",
            "system",
            scope=None,
            answer=Version,
        ),
    )
