"""A collector of spans and metrics: OTLP over HTTP and over gRPC, in this process."""

from __future__ import annotations

import asyncio
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_GRPC = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass(slots=True)
class SeenSpan:
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    attributes: dict[str, Any]


@dataclass(slots=True)
class Receiver:
    endpoint: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    metrics: dict[str, Metric] = field(default_factory=dict)
    """The newest of each name."""

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            for one in resource.resource.attributes:
                if one.key == "service.name":
                    self.services.add(one.value.string_value)
            for scope in resource.scope_spans:
                self.spans.extend(_seen(span) for span in scope.spans)

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics.update((one.name, one) for one in scope.metrics)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: SeenSpan) -> list[str]:
        """Return the names of the children of a span, sorted."""
        return sorted(span.name for span in self.spans if span.parent == parent.id)

    async def until(self, ready: Callable[[], object]) -> None:
        """Spans are sent in batches, some time after they ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not ready():  # noqa: ASYNC110  (the receiver is a thread)
                await asyncio.sleep(0.02)


def _seen(span: Span) -> SeenSpan:
    return SeenSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.status.code == 2,
        {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
    )


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    seen = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                seen.take(ExportTraceServiceRequest.FromString(body))
            elif self.path == "/v1/metrics":
                seen.take_metrics(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    seen.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    import grpc

    seen = Receiver()

    def export(request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:
        seen.take(request)
        return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=ExportTraceServiceRequest.FromString,
        response_serializer=ExportTraceServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_GRPC, {"Export": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    seen.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield seen
    finally:
        server.stop(None).wait()
