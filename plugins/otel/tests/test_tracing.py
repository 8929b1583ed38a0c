"""Spans of a real daemon and of an embedded engine, as a collector receives them."""

from __future__ import annotations

import sys

import aiohttp
import pytest

from tests.acceptance.conftest import sandkasten
from tests.agents.agency import environ_for, files_in, played
from tests.daemon.process import ask, running
from tests.models.server import ScriptedModel
from tests.telemetry.otlp_receiver import grpc_receiver, http_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def _sending(endpoint, **more):
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        **more,
    }


@pytest.fixture
async def traced(tmp_path):
    """A daemon with agents, whose spans arrive here."""
    files_in(tmp_path)
    with http_receiver() as receiver:
        async with ScriptedModel(played) as model:
            environ = environ_for(
                tmp_path, model, SANDKASTEN_BACKEND="local", **_sending(receiver.endpoint)
            )
            async with (
                running(tmp_path / "data", environ=environ) as daemon,
                aiohttp.ClientSession(daemon.url) as http,
            ):
                yield http, receiver, model


@pytest.mark.promise("P84")
async def test_a_daemon_reports_the_whole_tree_of_its_work(traced):
    http, receiver, model = traced
    await _one_shot(http, receiver)
    await _commands(http, receiver)
    await _workflow(http, receiver, model)
    await _metrics(http, receiver)


async def _one_shot(http, receiver):
    code = "import os; print(os.environ['TRACEPARENT']); open('a.txt', 'w').write('x')"
    body = {"code": code, "artifacts": ["*.txt"], "timeout_seconds": 60}
    status, answer = await ask(http, "POST", "/v1/run", body, headers={"traceparent": PARENT})
    assert status == 200, answer
    await receiver.until(lambda: receiver.named("POST /v1/run"))
    (request,) = receiver.named("POST /v1/run")
    (run,) = receiver.named("sandbox_run")
    assert (request.trace, request.parent) == (TRACE, "b7ad6b7169203331")
    assert request.attributes["http.response.status_code"] == 200
    assert receiver.below(request) == ["sandbox_run"]
    assert receiver.below(run) == [
        "sandbox.collect_artifacts",
        "sandbox.collect_outputs",
        "sandbox.connect",
        "sandbox.destroy",
        "sandbox.exec",
        "sandbox.prepare_files",
    ]
    wanted = {
        "sandbox.id": answer["sandbox_id"],
        "sandbox.runtime": "python",
        "sandbox.image": answer["image"],
        "sandbox.backend": "local",
        "sandbox.timeout_seconds": 60,
        "sandbox.exit_code": 0,
        "sandbox.stdout_bytes": len(answer["stdout"]),
        "sandbox.stderr_bytes": 0,
        "sandbox.artifacts_count": 1,
        "sandbox.input": code,
    }
    assert {name: run.attributes.get(name) for name in wanted} == wanted
    # The program inside continues the span of its command.
    (command,) = receiver.named("sandbox.exec")
    assert answer["stdout"][3:52] == f"{TRACE}-{command.id}"
    assert receiver.services == {"sandkasten"}


async def _commands(http, receiver):
    _, box = await ask(http, "POST", "/v1/sessions", {})
    path = f"/v1/sessions/{box['id']}"
    receiver.spans.clear()
    body = {"cmd": "export PASSWORD=hunter2; echo $TRACEPARENT; (exit 3)"}
    _, answer = await ask(http, "POST", f"{path}/exec", body)
    missing, _ = await ask(http, "GET", "/v1/sessions/sbx_0000000000000000")
    assert missing == 404
    await receiver.until(lambda: len(receiver.named("GET /v1/sessions/{id}")) == 1)
    (command,) = receiver.named("sandbox.exec")
    assert (command.failed, command.attributes["error"]) == (True, "EXIT_CODE")
    assert command.attributes["sandbox.exit_code"] == 3
    assert command.id in answer["stdout"]
    assert "hunter2" not in str(receiver.spans)
    assert "PASSWORD=[redacted]" in command.attributes["sandbox.input"]
    (request,) = receiver.named("GET /v1/sessions/{id}")
    assert (request.failed, request.attributes["error"]) == (False, "SESSION_NOT_FOUND")
    await ask(http, "DELETE", path)


async def _workflow(http, receiver, model):
    receiver.spans.clear()
    body = {"workflow_id": "flow", "input": {"text": "hi"}}
    status, answer = await ask(http, "POST", "/workflow-runs", body)
    assert status == 202, answer
    await receiver.until(lambda: receiver.named("workflow.run"))
    (flow,) = receiver.named("workflow.run")
    assert (flow.attributes["workflow.name"], flow.attributes["run.status"]) == (
        "flow",
        "completed",
    )
    steps = receiver.named("workflow.step")
    assert [step.attributes["workflow.step.id"] for step in steps] == ["write", "read", "done"]
    assert {step.parent for step in steps} == {flow.id}
    writer, reader = receiver.named("agent.run")
    assert (writer.parent, reader.parent) == (steps[0].id, steps[1].id)
    assert {span.attributes["span.alias"] for span in (writer, reader)} == {"AgentExecute"}
    assert receiver.below(writer) == ["chat scripted", "chat scripted", "sandbox_exec"]
    (tool,) = receiver.named("sandbox_exec")
    assert tool.parent == writer.id
    assert "sandbox.exec" in receiver.below(tool)
    assert receiver.named("sandbox_fs_read")[0].parent == reader.id
    # The endpoint of the model can continue the trace.
    sent = [request.headers.get("traceparent", "")[3:52] for request in model.requests]
    assert sent == [f"{span.trace}-{span.id}" for span in receiver.named("chat scripted")]


async def _metrics(http, receiver):
    """The numbers over OTLP are those of /metrics."""
    _, box = await ask(http, "POST", "/v1/sessions", {})
    path = f"/v1/sessions/{box['id']}/exec"
    _, started = await ask(http, "POST", path, {"cmd": ["true"], "background": True})
    assert started["exec_id"]
    # A run, two commands and one in the background.
    await receiver.until(
        lambda: _count(receiver, "sandkasten_exec_seconds", status="completed") == 4
    )
    await receiver.until(lambda: "sandkasten_sessions" in receiver.metrics)
    assert _count(receiver, "station_sandbox_run_duration_ms", runtime="python") == 1
    (runs,) = receiver.metrics["station_sandbox_runs_total"].sum.data_points
    assert (runs.as_double, _labels(runs)) == (1.0, {"runtime": "python", "ok": "true"})
    async with http.get("/metrics") as reply:
        shown = await reply.text()
    assert 'sandkasten_exec_seconds_count{status="completed"} 4.0' in shown
    await ask(http, "DELETE", f"/v1/sessions/{box['id']}")


def _count(receiver, name, **labels):
    points = receiver.metrics[name].histogram.data_points if name in receiver.metrics else []
    for point in points:
        assert sum(point.bucket_counts) == point.count
    return sum(point.count for point in points if _labels(point) == labels)


def _labels(point):
    return {attribute.key: attribute.value.string_value for attribute in point.attributes}


def test_spans_go_out_over_grpc(tmp_path):
    with grpc_receiver() as receiver:
        environ = _sending(receiver.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        done = sandkasten("--data-dir", str(tmp_path / "data"), "run", "-c", "print(1)", **environ)
        assert (done.out, done.status) == ("1\n", 0), done
        # They are sent before the process ends.
        assert receiver.named("sandbox_run")


def test_a_collector_that_is_away_costs_nothing_but_its_spans(tmp_path):
    environ = _sending("http://127.0.0.1:9")
    done = sandkasten("--data-dir", str(tmp_path / "data"), "run", "-c", "print(1)", **environ)
    assert (done.out, done.status) == ("1\n", 0), done


def test_nothing_is_imported_when_tracing_is_off(tmp_path):
    import subprocess

    program = (
        "import sys\n"
        "from sandkasten_server.daemon.metrics import Metrics\n"
        "from sandkasten_otel.otlp_setup import OtlpSetup\n"
        "setup = OtlpSetup({})\n"
        "setup.tracing(), setup.metrics(Metrics().registry)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
