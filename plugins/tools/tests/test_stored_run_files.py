"""Files of `sandbox_run` by their key in the file store: no content passes through the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten.model.access.tenancy import DEFAULT_TENANT
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_tools.calls.agent_sandbox import AgentSandbox


async def stored(desk, key: str, data: bytes, tenant: str = DEFAULT_TENANT) -> None:
    async def pieces():
        yield data

    await desk.store.put(tenant, key, pieces(), overwrite=True)


@pytest.fixture
def computing(tools):
    return tools.asking(AgentSandbox())


@pytest.mark.parametrize(
    "files",
    [
        {"in.csv": {"file_key": "data/in.csv"}},
        [{"file_key": "data/in.csv"}],
        [{"file_key": "data/in.csv", "path": "in.csv"}],
        [{"file_key": "data/in.csv", "destination": "in.csv"}],
    ],
)
async def test_a_stored_file_is_staged_by_its_key(computing, files):
    await stored(computing, "data/in.csv", b"a,b\n1,2\n")
    answer = await computing.call("run", code="print(open('in.csv').read())", files=files)
    assert (answer.get("stdout"), answer["ok"]) == ("a,b\n1,2\n\n", True), answer


async def test_a_file_larger_than_any_content_is_staged_beside_contents(computing):
    await stored(computing, "big", b"x" * (20 << 20))
    files = {"sub/big": {"file_key": "big"}, "small": "text"}
    code = "import os; print(os.path.getsize('sub/big'), open('small').read())"
    answer = await computing.call("run", code=code, files=files)
    assert answer.get("stdout") == f"{20 << 20} text\n", answer
    small = AgentSandbox(options=SandboxOptions(limits={"workspace_mb": 8}))
    refused = await computing.asking(small).call("run", code=code, files=files)
    assert (refused["code"], refused["details"]["limit"]) == ("PAYLOAD_TOO_LARGE", 8 << 20)
    assert await computing.engine.list() == []


async def test_a_key_of_another_tenant_is_like_an_unknown_one(computing):
    await stored(computing, "theirs", b"secret", tenant="other")
    answers = [
        await computing.call("run", code="", files=[{"file_key": key, "path": "x"}])
        for key in ("theirs", "nothing")
    ]
    assert {reply["code"] for reply in answers} == {"FILE_NOT_FOUND"}
    message, other = (reply["message"] for reply in answers)
    assert message.replace("theirs", "?") == other.replace("nothing", "?")
    denied = computing.within(files=False)
    answer = await denied.call("run", code="", files=[{"file_key": "nothing"}])
    assert (answer["code"], answer["details"]) == ("FORBIDDEN", {"scope": "files"})


@pytest.mark.parametrize(
    "files",
    [
        [{"path": "x"}],
        [{"file_key": "a/x"}, {"file_key": "b/x"}],
        [{"file_key": "a", "path": "x", "destination": "y"}],
        {"x": {"file_key": "a", "content": "b"}},
        {"../x": {"file_key": "a"}},
        [{"file_key": "a", "path": "/etc/passwd"}],
        [{"file_key": "a", "path": "main.py"}],
        ["a"],
    ],
)
async def test_a_malformed_reference_is_refused(computing, files):
    await stored(computing, "a", b"1")
    answer = await computing.call("run", code="", files=files)
    assert answer["code"] in ("INVALID_REQUEST", "FORBIDDEN_PATH", "FILE_PERMISSION"), answer
    assert await computing.engine.list() == []


async def test_without_a_file_store_a_reference_is_refused(computing, monkeypatch):
    monkeypatch.setattr(computing.engine._oneshot, "_stored", None)
    answer = await computing.call("run", code="", files=[{"file_key": "a"}])
    assert (answer["code"], "no file store" in answer["message"]) == (
        "UNSUPPORTED_BY_BACKEND",
        True,
    )


async def test_the_number_of_files_is_the_agents(computing):
    await stored(computing, "a", b"1")
    few = replace(AgentSandbox(), options=SandboxOptions(limits={"max_files": 1}))
    files = [{"file_key": "a", "path": name} for name in ("x", "y")]
    answer = await computing.asking(few).call("run", code="", files=files)
    assert answer["code"] == "PAYLOAD_TOO_LARGE"
