"""One-shot compute over HTTP."""

from __future__ import annotations

import base64

import pytest

from tests.api.events import events


async def test_a_run_returns_every_documented_field(real_daemon):
    reply = await real_daemon.ask(
        "POST",
        "/v1/run",
        {
            "code": "import sys; print(open('in.txt').read(), sys.argv[1:], input());"
            "open('out.bin', 'wb').write(open('b', 'rb').read())",
            "args": ["x"],
            "files": {"in.txt": "text", "b": {"content_base64": "AP8="}},
            "stdin": "line\n",
            "artifacts": ["*.bin"],
            "timeout_ms": 60_000,
        },
    )
    assert reply.status == 200
    found = reply.json
    assert (found["ok"], found["exit_code"], found["runtime"]) == (True, 0, "python")
    assert found["stdout"] == "text ['x'] line\n"
    assert found["error"] is None
    assert found["limits"]["timeout_seconds"] == 60
    [artifact] = found["artifacts"]
    assert (artifact["path"], artifact["size_bytes"]) == ("out.bin", 2)
    assert base64.b64decode(artifact["content_base64"]) == b"\0\xff"
    assert (await real_daemon.ask("GET", "/v1/sessions")).json == []


async def test_failing_code_is_a_result_and_its_bytes_survive(real_daemon):
    code = "printf '\\377'; exit 3"
    found = (await real_daemon.ask("POST", "/v1/run", {"code": code, "runtime": "bash"})).json
    assert (found["ok"], found["exit_code"]) == (False, 3)
    assert base64.b64decode(found["stdout_b64"]) == b"\xff"
    assert "3" in found["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"code": 1}, 422),
        ({"code": "1", "runtime": "cobol"}, 400),
        ({"code": "1", "timeout_seconds": 0}, 422),
        ({"code": "1", "timeout_seconds": True}, 422),
        ({"code": "1", "files": {"a": {}}}, 422),
        ({"code": "1", "files": {"a": {"content_base64": "?"}}}, 422),
        ({"code": "1", "files": {"../a": "x"}}, 400),
        ({"code": "1", "stdin": "a", "stdin_b64": "YQ=="}, 422),
        ({"code": "1", "image": "--privileged"}, 400),
        ({"code": "1", "image": "no/such"}, 404),
        ({"code": "1", "limits": {"mem_limit_mb": 1e12}}, 400),
        ({"code": "1", "nonsense": 1}, 422),
    ],
)
async def test_an_invalid_run_is_refused(daemon, body, status):
    reply = await daemon.ask("POST", "/v1/run", body)
    assert reply.status == status, reply.raw


@pytest.mark.promise("P20", "P37")
async def test_an_artifact_whose_name_is_not_utf_8_is_answered_in_both_forms(daemon):
    code = "open(b'x\\xff', 'w').write('1'); open('y', 'w').write('2')"
    reply = await daemon.ask("POST", "/v1/run", {"code": code, "artifacts": ["*"]})
    assert reply.status == 200, reply.raw
    found = sorted((one["path"], one.get("path_b64")) for one in reply.json["artifacts"])
    assert found == [("x\ufffd", base64.b64encode(b"x\xff").decode()), ("y", None)]


async def test_a_run_is_streamed_when_events_are_accepted(daemon):
    body = {"code": "echo out; echo err >&2; exit 3", "runtime": "sh"}
    headers = {"Accept": "text/event-stream"}
    async with daemon.http.post(f"{daemon.url}/v1/run", json=body, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        said = [event async for event in events(reply)]
    *chunks, last = said
    assert {(one.data["stream"], one.data["text"]) for one in chunks} == {
        ("stdout", "out\n"),
        ("stderr", "err\n"),
    }
    assert (last.name, last.data["exit_code"], last.data["stdout"]) == ("done", 3, "out\n")
    refused = await daemon.ask("POST", "/v1/run", {"code": "", "image": "no/such"}, headers=headers)
    assert (refused.status, refused.json["code"]) == (404, "IMAGE_NOT_FOUND")
