"""The HTTP API of the source documents: every endpoint, and the requests of its runner."""

from __future__ import annotations

import base64
import json
import re

import pytest

from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests.api.daemon_in_process import serving
from tests.seeds.documents import block

BODIES = {
    "create session": {},
    "execute command": {"cmd": "pwd", "timeout_ms": 30_000},
    "write file": {"path": "/workspace/foo.py", "content_base64": "cHJpbnQoMSk="},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def daemon(tmp_path_factory, anyio_backend):
    place = tmp_path_factory.mktemp("seeds") / "data"
    engine = await open_engine(settings(ServerAddress(str(place), "unisolated")))
    async with serving(engine) as one:
        yield one
    for info in await engine.list(all=True):
        await engine.destroy(info.id)
    await engine.aclose()


async def test_every_endpoint_of_the_plan_answers(daemon):
    lines = re.findall(r"^(\w+)\s+(\S+)\s+-> ([\w ]+)", block("004-8").text, re.MULTILINE)
    assert len(lines) == 7
    # A session is read before it is destroyed, and a file after it was written.
    lines.sort(key=lambda one: one[0] == "DELETE")
    the_id = ""
    for method, path, what in lines:
        path = path.replace("{id}", the_id) + ("?path=foo.py" if "read" in path else "")
        reply = await daemon.ask(method, path, BODIES.get(what.strip()))
        assert reply.status == (201 if path == "/v1/sessions" and method == "POST" else 200), path
        the_id = reply.json["id"] if reply.status == 201 else the_id
    assert (await daemon.ask("GET", "/v1/sessions")).json == []


async def test_the_requests_of_the_runner_are_answered_over_http_with_the_same_fields(daemon):
    requests = [json.loads(one) for one in block("004-2").text.splitlines() if one[0] == "{"]
    answers = [json.loads(one) for one in block("004-3").text.splitlines() if one[0] == "{"]
    the_id = await daemon.session()
    for request, answer in zip(requests, answers[:3], strict=True):
        assert request.pop("id") == answer.pop("id")
        kind = request.pop("type")
        assert answer.pop("type") == kind
        if kind == "write":
            request["content_base64"] = base64.b64encode(b"print(1)").decode()
        at = f"/v1/sessions/{the_id}/" + {"exec": "exec", "write": "fs/write"}.get(kind, "fs/read")
        if kind == "read":
            reply = await daemon.ask("GET", f"{at}?path={request['path']}&max_bytes=1048576")
        else:
            reply = await daemon.ask("POST", at, request)
        assert reply.status == 200, reply.raw
        for name, value in answer.items():
            assert type(reply.json[name]) is type(value), name
    error = answers[3]
    reply = await daemon.ask("POST", f"/v1/sessions/{the_id}/exec", {})
    assert isinstance(reply.json["message"], type(error["message"]))
    await daemon.ask("DELETE", f"/v1/sessions/{the_id}")


async def test_every_column_of_the_plan_is_a_field_of_a_session(daemon):
    columns = re.findall(r"^  (\w+)\s+TEXT", block("004-6").text, re.MULTILINE)
    the_id = await daemon.session()
    session = (await daemon.ask("GET", f"/v1/sessions/{the_id}")).json
    # A sandbox need not be a container, and activity shows in the time of its end.
    assert set(columns) - {"container_id", "last_activity"} <= set(session)
    assert {"container_id", "last_activity"} <= set(columns)
    await daemon.ask("DELETE", f"/v1/sessions/{the_id}")
