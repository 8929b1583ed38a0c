"""Spans by OpenTelemetry. Implements `ports.Tracing`.

Used by engines in a program that has set a tracer provider: their spans belong to the traces of the
program, and it says where they go. Otherwise they are those of `piped_spans.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sandkasten.errors import Cancelled, SandkastenError
from sandkasten.model.optional_extras import VERSION
from sandkasten.model.redaction import excerpt
from sandkasten.ports.spans import checked_traceparent
from sandkasten_otel.piped_spans import MAX_CONTENT, bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from sandkasten.ports.spans import Attributes, Span

_W3C = TraceContextTextMapPropagator()
_OURS = otel_context.create_key("sandkasten-span")


class OtelSpan:
    """Implements `ports.Span`."""

    __slots__ = ("_attributes", "_content", "_failed", "name", "span")

    def __init__(self, span: trace.Span, name: str, *, content: bool) -> None:
        self.span = span
        self.name = name
        self._content = content
        self._failed = False
        # Set at once at the end: the library takes a lock for each call.
        self._attributes: dict[str, Any] = {}

    def set(self, attributes: Attributes) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._attributes[name] = bounded(value)

    def content(self, name: str, value: str | bytes) -> None:
        if self._content and self.span.is_recording():
            self._attributes[name] = excerpt(value, MAX_CONTENT)

    def fail(self, error: str, message: str = "") -> None:
        if not self._failed:
            self._failed = True
            self._attributes["error"] = error
            self.span.set_status(Status(StatusCode.ERROR, excerpt(message, MAX_CONTENT)))

    def __enter__(self) -> OtelSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SandkastenError):
            self.fail(error.code, error.message)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.fail(Cancelled.code)
        elif error is not None:
            # Its message may hold anything.
            self.fail(type(error).__name__)
        self.span.set_attributes(self._attributes)
        self.span.end()


class OtelTracing:
    def __init__(self, provider: trace.TracerProvider, *, content: bool = True) -> None:
        """`content`: whether spans show what users sent and got."""
        self._tracer = provider.get_tracer("sandkasten", VERSION)
        self._content = content

    @contextmanager
    def span(
        self, name: str, attributes: Attributes | None = None, *, join: bool = False
    ) -> Iterator[Span]:
        if join:
            current = otel_context.get_value(_OURS)
            if isinstance(current, OtelSpan) and current.name == name:
                current.set(attributes or {})
                yield current
                return
        own_span = OtelSpan(self._tracer.start_span(name), name, content=self._content)
        yield from self._within(own_span, attributes)

    def begin(self, name: str, attributes: Attributes | None = None) -> Span:
        own_span = OtelSpan(self._tracer.start_span(name), name, content=self._content)
        own_span.set(attributes or {})
        return own_span

    @contextmanager
    def request(
        self, name: str, headers: Mapping[str, str], attributes: Attributes | None = None
    ) -> Iterator[Span]:
        parent = None
        if checked_traceparent(headers.get("traceparent")) is not None:
            parent = _W3C.extract(headers)
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER)
        own_span = OtelSpan(span, name, content=self._content)
        yield from self._within(own_span, attributes)

    def traceparent(self, span: Span | None = None) -> str | None:
        context = trace.set_span_in_context(span.span) if isinstance(span, OtelSpan) else None
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, context)
        return carrier.get("traceparent")

    def _within(self, own_span: OtelSpan, attributes: Attributes | None) -> Iterator[Span]:
        own_span.set(attributes or {})
        inside = otel_context.set_value(_OURS, own_span, trace.set_span_in_context(own_span.span))
        token = otel_context.attach(inside)
        try:
            with own_span:
                yield own_span
        finally:
            otel_context.detach(token)


def provider_of_program() -> trace.TracerProvider | None:
    """Return the tracer provider that the embedding program has set, if it has."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider
