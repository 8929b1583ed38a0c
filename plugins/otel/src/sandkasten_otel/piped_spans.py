"""Spans that are only recorded here, for `span_pipe.py`. Implements `ports.Tracing`.

OpenTelemetry's library needs a tenth of a command's time to make its spans, and more to encode
them. So a span is a few fields here, nothing of the library is imported, and another process does
the rest. The standard variables for sampling mean what they mean to the library.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

from sandkasten.errors import Cancelled, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.redaction import head_of
from sandkasten.ports.spans import checked_traceparent, current_link

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType

    from sandkasten.ports.spans import Attributes, Link, Span

log = logging.getLogger("sandkasten.telemetry")
MAX_CONTENT: Final = 1000
"""Characters of an input or an output in a span."""
# Numbers of OpenTelemetry's kinds of spans.
_INTERNAL: Final = 0
_SERVER: Final = 1
# What the standard asks every program to pass on.
_MAX_STATE: Final = 512
_LIMIT: Final = 2**64
_NONE: Attributes = {}


class EndedSpan(NamedTuple):
    """The fields of a span, in the order in which they are sent."""

    name: str
    kind: int
    trace_id: int
    span_id: int
    state: str
    """The client's header `tracestate`."""
    parent_id: int | None
    parent_is_remote: bool
    began_ns: int
    ended_ns: int
    error: tuple[str, int] | None
    """The message of a failure, as a content."""
    attributes: dict[str, object]
    """A content is a pair: its head, not yet searched for secrets, and the length of the whole."""


class RemoteSpan(NamedTuple):
    """The parent that a request names."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str


def bounded(value: object) -> object:
    """Return a value of an attribute; a client may have chosen a string, and how long it is."""
    return value[:MAX_CONTENT] if isinstance(value, str) else value


class PipedSpan:
    """Implements `ports.Span` and `ports.Link`."""

    __slots__ = (
        "_attributes",
        "_began_ns",
        "_error",
        "_is_parent",
        "_kind",
        "_parent",
        "_token",
        "_tracing",
        "name",
        "sampled",
        "span_id",
        "state",
        "trace_id",
    )

    def __init__(
        self,
        tracing: PipedTracing,
        name: str,
        attributes: Attributes,
        parent: PipedSpan | RemoteSpan | None,
        *,
        kind: int = _INTERNAL,
        is_parent: bool,
    ) -> None:
        self._tracing = tracing
        self.name = name
        self._kind = kind
        self._parent = parent
        self._is_parent = is_parent
        self.span_id = random.getrandbits(64) or 1
        if parent is None:
            self.trace_id = random.getrandbits(128) or 1
            self.state = ""
        else:
            self.trace_id = parent.trace_id
            self.state = parent.state
        self.sampled = tracing.sampler.is_sampled(self.trace_id, parent)
        self._attributes: dict[str, object] = {}
        self._error: tuple[str, int] | None = None
        self._token: Token[Link | None] | None = None
        self._began_ns = time.time_ns()
        self.set(attributes)

    def set(self, attributes: Attributes) -> None:
        if self.sampled:
            for name, value in attributes.items():
                if value is not None:
                    self._attributes[name] = bounded(value)

    def content(self, name: str, value: str | bytes) -> None:
        if self.sampled and self._tracing.content:
            self._attributes[name] = (head_of(value, MAX_CONTENT), len(value))

    def fail(self, error: str, message: str = "") -> None:
        if self._error is None:
            self._error = (message[: 2 * MAX_CONTENT], len(message))
            self._attributes["error"] = error

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"

    def __enter__(self) -> PipedSpan:
        if self._is_parent:
            self._token = current_link.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            current_link.reset(self._token)
        if not self.sampled:
            return
        if error is not None:
            self._fail_by(error)
        parent = self._parent
        # A plain tuple: one with a class takes three times as long to pickle.
        self._tracing.put(
            (
                self.name,
                self._kind,
                self.trace_id,
                self.span_id,
                self.state,
                None if parent is None else parent.span_id,
                isinstance(parent, RemoteSpan),
                self._began_ns,
                time.time_ns(),
                self._error,
                self._attributes,
            )
        )

    def _fail_by(self, error: BaseException) -> None:
        if isinstance(error, SandkastenError):
            self.fail(error.code, error.message)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.fail(Cancelled.code)
        else:
            # Its message may hold anything.
            self.fail(type(error).__name__)


class PipedTracing:
    def __init__(
        self, put: Callable[[tuple[object, ...]], None], sampler: Sampler, *, content: bool = True
    ) -> None:
        """`put` takes the fields of each `EndedSpan`.

        `content`: whether spans show what users sent and got.
        """
        self.put = put
        self.sampler = sampler
        self.content = content

    def span(
        self, name: str, attributes: Attributes = _NONE, *, join: bool = False
    ) -> AbstractContextManager[Span]:
        parent = _current()
        if join and parent is not None and parent.name == name:
            parent.set(attributes)
            return nullcontext(parent)
        return PipedSpan(self, name, attributes, parent, is_parent=True)

    def begin(self, name: str, attributes: Attributes = _NONE) -> Span:
        return PipedSpan(self, name, attributes, _current(), is_parent=False)

    def request(
        self, name: str, headers: Mapping[str, str], attributes: Attributes = _NONE
    ) -> AbstractContextManager[Span]:
        parent = remote_span(headers)
        return PipedSpan(self, name, attributes, parent, kind=_SERVER, is_parent=True)

    def traceparent(self, span: Span | None = None) -> str | None:
        current = span if isinstance(span, PipedSpan) else _current()
        return None if current is None else current.traceparent


def remote_span(headers: Mapping[str, str]) -> RemoteSpan | None:
    """Return the span that the headers of a request name, if they are valid."""
    header = checked_traceparent(headers.get("traceparent"))
    if header is None:
        return None
    state = headers.get("tracestate", "")
    return RemoteSpan(
        int(header[3:35], 16),
        int(header[36:52], 16),
        bool(int(header[53:55], 16) & 1),
        state if len(state) <= _MAX_STATE else "",
    )


@dataclass(frozen=True, slots=True)
class Sampler:
    """The samplers that `OTEL_TRACES_SAMPLER` can name."""

    follows_parent: bool
    bound: int
    """A new trace is sampled if the lower half of its id is below this."""

    def is_sampled(self, trace_id: int, parent: PipedSpan | RemoteSpan | None) -> bool:
        if parent is not None and self.follows_parent:
            return parent.sampled
        return trace_id % _LIMIT < self.bound


def sampler(environment: Mapping[str, str]) -> Sampler:
    """Return the sampler of the standard variables; one that is not known is the default."""
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    kind = name.removeprefix("parentbased_")
    rate = {"always_on": 1.0, "always_off": 0.0, "traceidratio": 1.0}.get(kind)
    if rate is None:
        _warn("OTEL_TRACES_SAMPLER")
        return Sampler(follows_parent=True, bound=_LIMIT)
    if kind == "traceidratio":
        rate = _rate(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
    return Sampler(follows_parent=kind != name, bound=round(rate * _LIMIT))


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        _warn("OTEL_TRACES_SAMPLER_ARG")
        return 1.0
    return rate


def _warn(variable: str) -> None:
    log.warning("telemetry.unknown_value", extra={"sandkasten": {"variable": variable}})


def _current() -> PipedSpan | None:
    span = current_link.get()
    return span if isinstance(span, PipedSpan) else None
