"""Spans: what a process reports about its work to a tracing system.

`UNTRACED` is the implementation of a process that reports nothing. It still passes the trace of an
HTTP request on to the sandbox, so a traced client finds the programs inside in its own trace.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    Attributes: TypeAlias = Mapping[str, str | int | float | bool | None]

# Version 00 of the W3C's trace context; later versions begin with the same fields.
_TRACEPARENT = lazy_pattern.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_NONE: Attributes = {}


class Span(Protocol):
    """One piece of work. Ends with its `with` block."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes; None is left out."""
        ...

    def content(self, name: str, value: str | bytes) -> None:
        """Add what a user sent or got: shortened, without secrets, or not at all."""
        ...

    def fail(self, error: str, message: str = "") -> None:
        """Mark the work as failed; `error` is a code."""
        ...

    def __enter__(self) -> Span: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Tracing(Protocol):
    def span(
        self, name: str, attributes: Attributes = _NONE, *, join: bool = False
    ) -> AbstractContextManager[Span]:
        """Open a span that is the parent of those opened in its block.

        With `join`, a current span of the same name is used instead of a new one.
        """
        ...

    def begin(self, name: str, attributes: Attributes = _NONE) -> Span:
        """Start a span that becomes the parent of no other span. Also for asynchronous generators,
        whose blocks run in several contexts.
        """
        ...

    def request(
        self, name: str, headers: Mapping[str, str], attributes: Attributes = _NONE
    ) -> AbstractContextManager[Span]:
        """Open the span of an HTTP request, whose headers may name its parent."""
        ...

    def traceparent(self, span: Span | None = None) -> str | None:
        """Return the W3C header of a span, by default of the current one."""
        ...


class Link(Protocol):
    """The current span, to which new spans and log lines belong."""

    @property
    def traceparent(self) -> str: ...


class _NoSpan:
    def set(self, attributes: Attributes) -> None:
        pass

    def content(self, name: str, value: str | bytes) -> None:
        pass

    def fail(self, error: str, message: str = "") -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


_NO_SPAN = _NoSpan()
_NO_BLOCK: AbstractContextManager[Span] = nullcontext(_NO_SPAN)
current_link: ContextVar[Link | None] = ContextVar("current_link", default=None)
"""The span of this process that is the parent of new ones, or that of the client."""
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The HTTP request that log lines and audit records belong to."""
caller_key: ContextVar[str | None] = ContextVar("caller_key", default=None)
"""The id of the key with which that request was made."""


@dataclass(frozen=True, slots=True)
class CallingAgent:
    """The agent whose model called a tool, and its run."""

    name: str
    run_id: str


caller_agent: ContextVar[CallingAgent | None] = ContextVar("caller_agent", default=None)
"""The agent of the tool call that records belong to; None for calls of clients."""


class Untraced:
    """Implements `Tracing` without any span."""

    def span(
        self, name: str, attributes: Attributes = _NONE, *, join: bool = False
    ) -> AbstractContextManager[Span]:
        return _NO_BLOCK

    def begin(self, name: str, attributes: Attributes = _NONE) -> Span:
        return _NO_SPAN

    def request(
        self, name: str, headers: Mapping[str, str], attributes: Attributes = _NONE
    ) -> AbstractContextManager[Span]:
        traceparent = checked_traceparent(headers.get("traceparent"))
        return _NO_BLOCK if traceparent is None else _passed_on(traceparent)

    def traceparent(self, span: Span | None = None) -> str | None:
        return _linked()


UNTRACED = Untraced()


def checked_traceparent(text: str | None) -> str | None:
    """Return the header of a client in the form of version 00, or None if it is not valid."""
    match = _TRACEPARENT.match(text) if text else None
    if match is None or text is None or (text[:2] == "00" and len(text) != match.end()):
        return None
    return "00" + match.group()[2:]


def current_traceparent() -> str | None:
    """Return the header of the span that the calling program is in.

    That is our own, or OpenTelemetry's current span if the program uses the library, and otherwise
    the variable TRACEPARENT, with which a traced program starts others.
    """
    return _linked() or _of_library() or checked_traceparent(os.environ.get("TRACEPARENT"))


def current_trace_id() -> str | None:
    """Return the trace that a log line belongs to."""
    traceparent = _linked() or _of_library()
    return None if traceparent is None else traceparent[3:35]


def _linked() -> str | None:
    link = current_link.get()
    return None if link is None else link.traceparent


def _of_library() -> str | None:
    """Return the header of OpenTelemetry's current span, if there is one."""
    otel = sys.modules.get("opentelemetry.trace")
    # While it is being imported, it has no functions.
    current = getattr(otel, "get_current_span", None)
    context = None if current is None else current().get_span_context()
    if context is None or not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@dataclass(frozen=True, slots=True)
class _ClientLink:
    traceparent: str


@contextmanager
def _passed_on(traceparent: str) -> Iterator[Span]:
    token = current_link.set(_ClientLink(traceparent))
    try:
        yield _NO_SPAN
    finally:
        current_link.reset(token)
