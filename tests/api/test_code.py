"""Code contexts over HTTP, with the SDK and on the command line, on the real local backend."""

from __future__ import annotations

import asyncio
import sys

import pytest

from sandkasten import AsyncSandbox, CodeDisplay, ContextNotFound, KernelNotFound
from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.model.commands.code_values import CodeRequest
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests.api.daemon_in_process import serving
from tests.api.events import events
from tests.cli.terminal import Person

pytestmark = pytest.mark.promise("P80")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return settings(ServerAddress(str(tmp_path_factory.mktemp("code") / "data"), "local"))


@pytest.fixture(scope="module")
async def real_engine(place, anyio_backend):
    one = await open_engine(place)
    yield one
    for info in await one.list(all=True):
        await one.destroy(info.id)
    await one.aclose()


@pytest.fixture(scope="module")
async def real_daemon(real_engine):
    async with serving(real_engine) as one:
        yield one


@pytest.fixture(scope="module")
async def box(real_daemon):
    """One session for all tests of this file, because a kernel takes a second to start."""
    return await real_daemon.session()


async def test_an_answer_has_every_documented_field(real_daemon, box):
    body = {"code": "x = 1\nprint('hi')\nx + 1", "timeout_ms": 60_000, "env": {"A": "b"}}
    reply = await real_daemon.ask("POST", f"/v1/sessions/{box}/code", body)
    assert reply.status == 200, reply.raw
    found = reply.json
    forms = "html markdown png svg jpeg pdf latex json javascript data chart"
    nothing = dict.fromkeys(forms.split())
    context, duration = found.pop("context_id"), found.pop("duration_ms")
    assert found.pop("execution_count") > 0
    assert found == {
        "language": "python",
        "status": "ok",
        "results": [{**nothing, "text": "2", "extra": {}, "main": True}],
        "stdout": "hi\n",
        "stderr": "",
        "error": None,
        "text": "2",
        "timed_out": False,
        "truncated": False,
        "kernel_restarted": False,
        "network": None,
    }
    assert duration > 0
    [listed] = (await real_daemon.ask("GET", f"/v1/sessions/{box}/contexts")).json
    assert (listed["id"], listed["language"], listed["default"]) == (context, "python", True)


async def test_events_are_output_results_and_the_answer(real_daemon, box):
    url = f"{real_daemon.url}/v1/sessions/{box}/code"
    order = {"json": {"code": "print('hi')\n'end'"}, "headers": {"Accept": "text/event-stream"}}
    async with real_daemon.http.post(url, **order) as reply:
        found = [one async for one in events(reply)]
    assert [one.name for one in found] == ["chunk", "result", "done"]
    assert found[0].data == {"stream": "stdout", "text": "hi\n"}
    assert (found[1].data["text"], found[2].data["text"]) == ("'end'", "'end'")


async def test_a_client_that_leaves_interrupts_its_code(real_daemon, box):
    url = f"{real_daemon.url}/v1/sessions/{box}/code"
    code = "left = 0\nprint('begun', flush=True)\nimport time\ntime.sleep(600)\nleft = 1"
    order = {"json": {"code": code}, "headers": {"Accept": "text/event-stream"}}
    async with real_daemon.http.post(url, **order) as reply:
        assert (await anext(events(reply))).data["text"] == "begun\n"
    body = {"code": "left", "timeout_seconds": 60}
    after = await real_daemon.ask("POST", f"/v1/sessions/{box}/code", body)
    assert after.json["text"] == "0"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "INVALID_REQUEST"),
        ({"code": 1}, 422, "INVALID_REQUEST"),
        ({"code": "1", "language": "%"}, 400, "INVALID_REQUEST"),
        ({"code": "1", "timeout_seconds": -1}, 422, "INVALID_REQUEST"),
        ({"code": "1", "context": "ctx_python_0000000000000000"}, 404, "CONTEXT_NOT_FOUND"),
        ({"code": "1", "language": "klingon"}, 404, "KERNEL_NOT_FOUND"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(real_daemon, box, body, status, code):
    reply = await real_daemon.ask("POST", f"/v1/sessions/{box}/code", body)
    assert (reply.status, reply.json["code"]) == (status, code)
    assert reply.json["hint"]


async def test_the_sdk_runs_code_through_the_daemon(real_daemon, box):
    there = await AsyncSandbox.attach(box, url=real_daemon.url)
    out: list[str] = []
    shown: list[CodeDisplay] = []
    result = await there.run_code("print(1)\n2", on_stdout=out.append, on_result=shown.append)
    assert (out, shown) == (["1\n"], [CodeDisplay(text="2", main=True)])
    assert result.text == "2"
    failed = await there.run_code("1 / 0")
    assert (failed.status, failed.error and failed.error.name) == ("error", "ZeroDivisionError")
    [context] = await there.contexts.list()
    await there.contexts.interrupt(context)
    with pytest.raises(KernelNotFound):
        await there.contexts.create("klingon")
    with pytest.raises(ContextNotFound):
        await there.contexts.remove("ctx_python_0000000000000000")


async def test_the_command_line_prints_output_and_saves_pictures(real_daemon, box, tmp_path):
    code = "print('hi'); display({'image/png': 'iVBORw0K'}, raw=True); 1 / 0"
    words = ["--url", real_daemon.url, "code", box, "-c", code, "--save", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sandkasten_server.cli", *words), stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"hi\n")
    assert b"ZeroDivisionError: division by zero" in err
    assert (tmp_path / "code-1.png").read_bytes() == b"\x89PNG\r\n"


async def test_a_prompt_interrupts_switches_languages_and_keeps_its_history(
    real_daemon, box, tmp_path
):
    words = ["env", f"XDG_STATE_HOME={tmp_path}", "TERM=dumb", sys.executable]
    words += ["-m", "sandkasten_server.cli", "--url", real_daemon.url, "code", box]
    steps = (
        ("", ">>> "),
        ("x = 40 + 1\n", ">>> "),
        ("x + 1\n", "42"),
        ("for i in (1,):\n  print(i + 6)\n\n", "7"),
        ("print('be' + 'gun'); import time; time.sleep(600)\n", "begun"),
        ("\x03", "KeyboardInterrupt: "),
        (":language cobol\n", "no kernel for cobol"),
        (":language sh\n", "bash> "),
        ("for i in 1; do\necho $((i + 7))\ndone\n", "8"),
        (":language py\n", ">>> "),
        ("x - 2\n", "39"),
    )

    def follow() -> int:
        with Person(words) as person:
            for keys, answer in steps:
                person.type(keys)
                person.wait_for(answer)
            person.wait_for(">>> ")
            person.type("\x04")
            return person.status()

    assert await asyncio.to_thread(follow) == 0
    kept = (tmp_path / "sandkasten" / "code_history").read_text().splitlines()
    assert kept[:2] == ["x = 40 + 1", "x + 1"]


async def test_another_engine_finds_the_context_with_its_variables(place, real_engine, box):
    await real_engine.code.run(box, CodeRequest("kept = 'there'"))
    another = await open_engine(place)
    try:
        assert (await another.code.run(box, CodeRequest("kept"))).text == "'there'"
    finally:
        await another.aclose()


async def test_what_the_network_refused_while_code_ran_is_in_its_answer_and_entry(real_daemon):
    box = await real_daemon.session(network={"allow": ["allowed.test:443"]})
    code = (
        "import socket\n"
        "try:\n    socket.create_connection(('refused.test', 443), 5)\n"
        "except OSError: pass"
    )
    body = {"code": code, "timeout_seconds": 60}
    answer = (await real_daemon.ask("POST", f"/v1/sessions/{box}/code", body)).json
    assert answer["status"] == "ok"
    assert [(one["host"], one["port"]) for one in answer["network"]["refused"]] == [
        ("refused.test", 443)
    ]
    quiet = {"code": "1", "timeout_seconds": 60}
    another = (await real_daemon.ask("POST", f"/v1/sessions/{box}/code", quiet)).json
    assert another["network"] is None
    _, newest = (await real_daemon.ask("GET", f"/v1/sessions/{box}/execs")).json[:2]
    assert (newest["kind"], newest["command"], newest["status"]) == ("cell", code, "completed")
    assert [one["host"] for one in newest["network"]["refused"]] == ["refused.test"]
    await real_daemon.ask("DELETE", f"/v1/sessions/{box}")
