"""`sandbox_run`: code in, result out, nothing left."""

from __future__ import annotations

import base64

from sandkasten.model.access.tenancy import TenantQuota
from sandkasten_tools.calls.agent_sandbox import AgentSandbox


async def test_running_code_with_arguments_variables_and_files_returns_every_field(tools):
    code = """
import os, sys, pathlib
print(sys.argv[1], os.environ["WHO"], open("in.txt").read(), open("raw", "rb").read())
pathlib.Path("out").mkdir()
pathlib.Path("out/result.json").write_text('{"a": 1}')
print("careful", file=sys.stderr)
"""
    answer = await tools.asking(AgentSandbox()).call(
        "run",
        code=code,
        args=["one"],
        env={"WHO": "me"},
        files={"in.txt": "text", "raw": {"content_base64": "/w=="}},
        artifacts=["out/*.json"],
        timeout_seconds=30,
    )
    assert set(answer) >= {"ok", "runtime", "exit_code", "duration_ms", "limits", "artifacts"}
    assert "error" not in answer
    assert (answer["ok"], answer["runtime"], answer["exit_code"]) == (True, "python", 0)
    assert answer["stdout"] == "one me text b'\\xff'\n"
    assert answer["stderr"] == "careful\n"
    [artifact] = answer["artifacts"]
    assert (artifact["path"], artifact["size_bytes"]) == ("out/result.json", 8)
    assert base64.b64decode(artifact["content_base64"]) == b'{"a": 1}'
    assert answer["limits"]["timeout_seconds"] == 30
    assert answer["limits"]["max_stdout_bytes"] == 200_000
    assert await tools.engine.list() == []


async def test_failing_code_returns_its_status(tools):
    answer = await tools.call("run", code="raise SystemExit(7)")
    assert (answer["ok"], answer["exit_code"]) == (False, 7)
    assert answer["error"] == "the code exited with status 7"
    assert "error_code" not in answer


async def test_every_runtime_runs(tools):
    for runtime, code in (
        ("python", "print('hi')"),
        ("node", "console.log('hi')"),
        ("bash", "echo hi"),
        ("sh", "echo hi"),
        ("linux", "echo hi"),
    ):
        answer = await tools.call("run", runtime=runtime, code=code)
        assert (answer["runtime"], answer["stdout"]) == (runtime, "hi\n")


async def test_nothing_is_kept_between_calls(tools):
    await tools.call("run", runtime="bash", code="touch left")
    assert (await tools.call("run", runtime="bash", code="ls"))["stdout"] == "main.sh\n"


async def test_files_cannot_leave_the_workspace(tools):
    for path in ("../x", "/etc/x"):
        assert (await tools.call("run", code="", files={path: ""}))["code"] == "INVALID_REQUEST"


async def test_output_that_is_not_utf8_is_marked(tools):
    answer = await tools.call("run", runtime="bash", code="printf 'a\\377'")
    assert (answer["stdout"], answer["not_utf8"]) == ("a\ufffd", ["stdout"])


async def test_a_tenants_quota_holds_for_runs(tools):
    small = tools.within(tenant="small", quota=TenantQuota(max_memory_bytes=100 << 20))
    answer = await small.call("run", code="print(1)")
    assert (answer["code"], answer["details"]["quota"]) == ("QUOTA_EXCEEDED", "memory")
