"""Recording and sampling of spans, and the process that sends them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from plugins.otel.tests.test_tracing import PARENT, TRACE
from sandkasten.errors import InvalidConfiguration
from sandkasten.model.redaction import excerpt, head_of
from sandkasten_otel import span_pipe
from sandkasten_otel.otel_spans import OtelTracing
from sandkasten_otel.otlp_setup import OtlpSetup
from sandkasten_otel.piped_spans import PipedTracing, sampler
from sandkasten_otel.span_pipe import SpanPipe
from sandkasten_otel.telemetry_settings import TelemetrySettings
from tests.daemon.process import ask, running
from tests.patience import PATIENCE_S
from tests.telemetry.otlp_receiver import http_receiver

SAMPLERS = [
    *({"OTEL_TRACES_SAMPLER": name} for name in ("always_on", "ALWAYS_OFF", "", "unheard_of")),
    *({"OTEL_TRACES_SAMPLER": f"parentbased_always_{choice}"} for choice in ("on", "off")),
    *(
        {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": rate}
        for name in ("traceidratio", "parentbased_traceidratio")
        for rate in ("0.25", "0", "1", "2", "x", "")
    ),
]


@pytest.mark.parametrize(
    "environment", SAMPLERS, ids=lambda variables: "-".join(variables.values())
)
def test_sampling_decides_as_the_library_does(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if not environment["OTEL_TRACES_SAMPLER"]:
        # Empty is as good as unset, by the standard; the library does not know that.
        monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    own_sampler = sampler(environment)
    provider = TracerProvider(shutdown_on_exit=False)
    for _ in range(50):
        trace_id = random.getrandbits(128)
        expected = provider.sampler.should_sample(None, trace_id, "x").decision.value == 2
        assert own_sampler.is_sampled(trace_id, None) is expected
    for flags, sampled in (("00", False), ("01", True)):
        spans: list[tuple] = []
        headers = {"traceparent": PARENT[:-2] + flags, "tracestate": "a=b"}
        tracing = PipedTracing(spans.append, own_sampler)
        with tracing.request("x", headers):
            traceparent = tracing.traceparent() or ""
        follows = environment["OTEL_TRACES_SAMPLER"].startswith(("parentbased", "un")) or (
            not environment["OTEL_TRACES_SAMPLER"]
        )
        if follows:
            assert bool(spans) is sampled
        assert traceparent[3:35] == TRACE
        assert traceparent[-2:] == ("01" if spans else "00")
        assert all(span[4] == "a=b" for span in spans)


@pytest.mark.parametrize("value", ["short", "x" * 1000, "x" * 1400, "ü" * 5000, b"\xff" * 2000])
def test_the_head_of_a_content_gives_the_same_excerpt(value):
    assert excerpt(head_of(value, 1000), 1000, len(value)) == excerpt(value, 1000)


@pytest.mark.promise("P85")
def test_what_a_client_names_is_bounded_in_a_span():
    spans: list[tuple] = []
    sent = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sent))
    for tracing in (PipedTracing(spans.append, sampler({})), OtelTracing(provider)):
        with tracing.span("x", {"name": "a" * 5000}) as span:
            span.set({"other": "b" * 5000, "number": 5})
    wanted = {"name": "a" * 1000, "other": "b" * 1000, "number": 5}
    assert spans[0][-1] == wanted
    assert dict(sent.get_finished_spans()[0].attributes or {}) == wanted


async def test_unsampled_requests_send_nothing_and_are_marked_inside(tmp_path):
    with http_receiver() as receiver:
        environ = {
            "SANDKASTEN_BACKEND": "local",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        }
        async with (
            running(tmp_path / "data", environ=environ) as daemon,
            aiohttp.ClientSession(daemon.url) as http,
        ):
            _, box = await ask(http, "POST", "/v1/sessions", {})
            path, body = f"/v1/sessions/{box['id']}/exec", {"cmd": "echo $TRACEPARENT"}
            _, plain = await ask(http, "POST", path, body)
            _, wanted = await ask(http, "POST", path, body, headers={"traceparent": PARENT})
            await ask(http, "DELETE", f"/v1/sessions/{box['id']}")
        # Those of the daemon are sent before it ends.
        assert sorted(span.name for span in receiver.spans) == [
            "POST /v1/sessions/{id}/exec",
            "sandbox.exec",
        ]
        assert {span.trace for span in receiver.spans} == {TRACE}
    assert plain["stdout"].endswith("-00\n"), plain
    assert wanted["stdout"].startswith(f"00-{TRACE}-")
    assert wanted["stdout"].endswith("-01\n")


def _pipe(endpoint, monkeypatch, **variables):
    for name, value in {"SCHEDULE_DELAY": "20", **variables}.items():
        monkeypatch.setenv(f"OTEL_BSP_{name}", value)
    command = [sys.executable, "-P", "-m", "sandkasten_otel.span_sender", "http", endpoint]
    return SpanPipe(command)


async def test_a_sender_that_died_is_replaced(monkeypatch, caplog):
    monkeypatch.setattr(span_pipe, "_RESTART_S", 0.0)
    with http_receiver() as receiver:
        pipe = await asyncio.to_thread(_pipe, receiver.endpoint, monkeypatch)
        try:
            tracing = PipedTracing(pipe.put, sampler({}))
            with tracing.span("before"):
                pass
            await receiver.until(lambda: receiver.named("before"))
            os.kill(pipe.sender_pid, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while not receiver.named("after"):
                    with tracing.span("after"):
                        pass
                    await asyncio.sleep(0.05)
        finally:
            await asyncio.to_thread(pipe.close)
    assert "telemetry.sender_restarted" in caplog.messages


async def test_a_sender_that_hangs_costs_spans_and_no_time(monkeypatch, caplog):
    monkeypatch.setattr(span_pipe, "FLUSH_S", 0.2)
    with http_receiver() as receiver:
        pipe = await asyncio.to_thread(
            _pipe, receiver.endpoint, monkeypatch, MAX_QUEUE_SIZE="20", MAX_EXPORT_BATCH_SIZE="10"
        )
        os.kill(pipe.sender_pid, signal.SIGSTOP)
        tracing = PipedTracing(pipe.put, sampler({}))
        # More than the pipe and the queue hold together.
        for _ in range(3000):
            with tracing.begin("x") as span:
                span.content("sandbox.output", "y" * 1500)
            await asyncio.sleep(0)
        assert len(pipe._queue) <= 20
        await asyncio.to_thread(pipe.close)
    with pytest.raises(ProcessLookupError):
        os.kill(pipe.sender_pid, 0)
    # One line every few seconds: a slow machine gives several. The pipe holds about 200.
    records = [record for record in caplog.records if record.message == "telemetry.spans_dropped"]
    assert 2000 < sum(record.sandkasten["count"] for record in records) <= 3000


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_a_sender_that_does_not_start_is_a_problem_of_the_settings(program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(InvalidConfiguration, match="process that sends spans did not start"):
        OtlpSetup(os.environ, TelemetrySettings("http://127.0.0.1:9")).tracing()
