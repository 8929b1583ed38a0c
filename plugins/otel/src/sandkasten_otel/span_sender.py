"""The process that sends the spans of another over OTLP; see `span_pipe.py`.

Started as `python -m sandkasten_otel.span_sender http|grpc [ENDPOINT]`. It reads batches of
spans from standard input and exports each. It first prints one JSON object: empty if it can send,
otherwise `missing` (a module) or `wrong` (a message). It ends with its input.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

from sandkasten_runtime.telemetry import json_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from sandkasten_otel.piped_spans import EndedSpan

_EXPORTERS: Final = {
    "http": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
# Commands come first where the processor is short.
_NICENESS: Final = 5


def main(kind: str, endpoint: str | None = None) -> None:
    # The end of the input is what ends this process, after the last batch.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    json_log.configure("warning")
    try:
        exporter = _exporter(kind, endpoint)
        readable = _reader()
    except ModuleNotFoundError as exc:
        _answer(missing=str(exc.name))
        return
    except (ValueError, TypeError) as exc:
        _answer(wrong=str(exc))
        return
    _answer()
    threading.Thread(target=_leave_soon_after_input, daemon=True).start()
    while True:
        try:
            # Written by the process that started this one.
            batch: list[EndedSpan] = pickle.load(sys.stdin.buffer)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):
            break
        exporter.export([readable(span) for span in batch])
    exporter.shutdown()


def _exporter(kind: str, endpoint: str | None) -> SpanExporter:
    if endpoint is not None and kind == "http":
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    exporter: SpanExporter = import_module(_EXPORTERS[kind]).OTLPSpanExporter(endpoint=endpoint)
    return exporter


def _reader() -> Callable[[tuple[object, ...]], ReadableSpan]:
    """Return what makes spans of OpenTelemetry of those that are read."""
    from opentelemetry.attributes import BoundedAttributes
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import (
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TraceState,
    )

    from sandkasten.model.optional_extras import VERSION
    from sandkasten.model.redaction import excerpt
    from sandkasten_otel.piped_spans import MAX_CONTENT, EndedSpan

    resource = Resource.create({"service.name": "sandkasten", "service.version": VERSION})
    scope = InstrumentationScope("sandkasten", VERSION)
    limits = SpanLimits()
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def shown(value: object) -> object:
        if isinstance(value, tuple):
            head, length = value
            return excerpt(head, MAX_CONTENT, length)
        return value

    def readable(ended: tuple[object, ...]) -> ReadableSpan:
        span = EndedSpan(*ended)  # type: ignore[arg-type]
        state = TraceState.from_header([span.state]) if span.state else None
        parent = None
        if span.parent_id is not None:
            parent = SpanContext(
                span.trace_id, span.parent_id, span.parent_is_remote, sampled, state
            )
        attributes = BoundedAttributes(
            limits.max_span_attributes,
            {name: shown(value) for name, value in span.attributes.items()},  # type: ignore[misc]
            max_value_len=limits.max_span_attribute_length,
        )
        status = Status()
        if span.error is not None:
            status = Status(StatusCode.ERROR, str(shown(span.error)))
        return ReadableSpan(
            span.name,
            SpanContext(span.trace_id, span.span_id, False, sampled, state),
            parent,
            resource,
            attributes,
            kind=SpanKind(span.kind),
            status=status,
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=scope,
        )

    return readable


def _answer(**problem: str) -> None:
    sys.stdout.write(json.dumps(problem) + "\n")
    sys.stdout.flush()


def _leave_soon_after_input() -> None:
    """End this process some time after the one that wrote, whatever an export waits for."""
    from sandkasten_otel.span_pipe import FLUSH_S

    poll = select.poll()
    # No event is asked for, so only the end of the writer is one.
    poll.register(sys.stdin.fileno(), 0)
    poll.poll()
    time.sleep(FLUSH_S)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
