"""Commands through the tools: awaited, or started and read later."""

from __future__ import annotations

import asyncio
import base64

import pytest

from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from tests.patience import DEADLINES_S

EXEC_ANSWER = {
    "exec_id",
    "status",
    "exit_code",
    "signal",
    "stdout",
    "stderr",
    "output",
    "cwd",
    "truncated",
    "timed_out",
    "oom_killed",
    "shell_reset",
    "duration_ms",
    "usage",
    "why",
}


async def test_a_string_runs_in_the_persistent_shell_and_a_list_in_its_own_process(tools):
    first = await tools.call("exec", cmd="mkdir -p sub && cd sub && export A=1; echo err >&2")
    assert set(first) >= EXEC_ANSWER | {"sandbox_id", "session_id"}
    assert (first["exit_code"], first["stderr"], first["cwd"]) == (0, "err\n", "/workspace/sub")
    second = await tools.call("exec", command="pwd; echo $A")
    assert second["stdout"] == "/workspace/sub\n1\n"
    alone = await tools.call("exec", cmd=["sh", "-c", "pwd; echo ${A:-none}"])
    assert alone["stdout"] == "/workspace\nnone\n"


async def test_cwd_and_env_apply_to_one_command_in_both_spellings(tools):
    for word in ("cwd", "workdir"):
        answer = await tools.call(
            "exec", cmd=["sh", "-c", "pwd; echo $B"], env={"B": "2"}, **{word: "/tmp"}
        )
        assert answer["stdout"] == "/tmp\n2\n"
    both = await tools.call("exec", cmd="pwd", cwd="/tmp", workdir="/work")
    assert both["message"] == "cwd and workdir contradict each other"


async def test_a_failing_command_is_a_result_and_one_that_cannot_run_an_error(tools):
    failed = await tools.call("exec", cmd="exit 3")
    assert (failed["status"], failed["exit_code"], "error_code" in failed) == (
        "completed",
        3,
        False,
    )
    missing = await tools.call("exec", cmd=["no-such-program"])
    assert (missing["ok"], missing["code"]) == (False, "COMMAND_NOT_FOUND")


async def test_a_timed_out_command_keeps_its_output(tools):
    await tools.call("exec", cmd="true")
    for timeout_s in DEADLINES_S:
        ended = await tools.call("exec", cmd="echo begun; sleep 60", timeout_seconds=timeout_s)
        if ended["stdout"]:
            break
    assert (ended["timed_out"], ended["stdout"], ended["why"]["code"]) == (
        True,
        "begun\n",
        "TIMEOUT",
    )


@pytest.mark.promise("P63")
async def test_output_that_is_not_utf8_is_marked(tools):
    answer = await tools.call("exec", cmd=["printf", "a\\377b"])
    assert (answer["stdout"], answer["not_utf8"]) == ("a\ufffdb", ["stdout", "output"])
    assert "not_utf8" not in await tools.call("exec", cmd="echo é")


async def test_a_command_can_be_started_read_and_awaited(tools):
    script = "echo one; read line < go; echo two >&2; exit 5"
    await tools.call("exec", cmd="mkfifo go")
    started = await tools.call("exec", cmd=["sh", "-c", script], stream=True)
    assert (started["status"], started["exit_code"], started["stdout"]) == ("running", None, "")
    the_id = started["exec_id"]
    waited = await tools.call("exec_wait", exec_id=the_id, timeout_seconds=0.05)
    assert (waited["done"], waited["exit_code"], "stdout" in waited) == (False, None, False)
    first = await tools.call("exec_read", exec_id=the_id)
    while not first["chunks"]:
        first = await tools.call("exec_read", exec_id=the_id)
    assert first["chunks"] == [{"seq": 1, "stream": "stdout", "text": "one\n"}]
    assert (first["done"], first["next_seq"]) == (False, 1)
    await tools.call("exec", cmd="echo > go")
    ended = await tools.call("exec_wait", exec_id=the_id)
    assert set(ended) >= EXEC_ANSWER
    assert (ended["done"], ended["exit_code"], ended["output"]) == (True, 5, "one\ntwo\n")
    rest = await tools.call("exec_read", exec_id=the_id, since_seq=first["next_seq"])
    assert rest["chunks"] == [{"seq": 2, "stream": "stderr", "text": "two\n"}]
    assert (rest["done"], rest["exit_code"]) == (True, 5)
    again = await tools.call("exec_read", exec_id=the_id, since_seq=0)
    assert [chunk["seq"] for chunk in again["chunks"]] == [1, 2]


async def test_a_started_command_outlives_the_agents_timeout_and_leaves_the_shell_free(tools):
    short = SandboxOptions(limits={"exec_timeout_seconds": 0.2})
    quick = tools.asking(AgentSandbox(mode="code", options=short))
    await quick.call("exec", cmd="mkfifo go; cd /tmp", timeout_seconds=30)
    started = await quick.call("exec", cmd="read line < /workspace/go; pwd", stream=True)
    assert (await quick.call("exec", cmd="sleep 60"))["timed_out"]
    await quick.call("exec", cmd="echo > /workspace/go", timeout_seconds=30)
    ended = await quick.call("exec_wait", exec_id=started["exec_id"])
    assert (ended["exit_code"], ended["stdout"]) == (0, "/tmp\n")


async def test_a_reader_gets_at_most_the_requested_chunks_and_misses_none(tools):
    # More than one chunk holds, and less than the retained output.
    started = await tools.call("exec", cmd=["seq", "30000"], stream=True)
    await tools.call("exec_wait", exec_id=started["exec_id"])
    since, text, turns, done = 0, "", 0, False
    while not done:
        part = await tools.call(
            "exec_read", exec_id=started["exec_id"], since_seq=since, max_chunks=1
        )
        assert len(part["chunks"]) <= 1
        assert part["more"] is not part["done"]
        text += "".join(chunk["text"] for chunk in part["chunks"])
        since, turns, done = part["next_seq"], turns + 1, part["done"]
    assert text == "".join(f"{i}\n" for i in range(1, 30_001))
    assert turns > 2


async def test_chunks_that_are_not_utf8_are_base64(tools):
    started = await tools.call("exec", cmd=["printf", "\\377"], stream=True)
    await tools.call("exec_wait", exec_id=started["exec_id"])
    [chunk] = (await tools.call("exec_read", exec_id=started["exec_id"]))["chunks"]
    assert base64.b64decode(chunk["data_b64"]) == b"\xff"


async def test_an_answer_of_chunks_is_bounded_by_the_agents_output_limit(tools):
    narrow = tools.asking(
        AgentSandbox(
            mode="code",
            options=SandboxOptions(limits={"max_stdout_bytes": 1000, "max_stderr_bytes": 0}),
        ),
        workflow_run_id="flow",
    )
    wide = narrow.asking(AgentSandbox(mode="code"))
    started = await wide.call("exec", cmd="head -c 300000 /dev/zero", stream=True)
    await wide.call("exec_wait", exec_id=started["exec_id"])
    part = await narrow.call("exec_read", exec_id=started["exec_id"])
    assert (len(part["chunks"]), part["more"], part["done"]) == (1, True, False)


async def test_an_unknown_command_is_an_error(tools):
    for tool in ("exec_read", "exec_wait"):
        assert (await tools.call(tool, exec_id="exe_none"))["code"] == "EXEC_NOT_FOUND"
        assert (await tools.call(tool, exec_id="../x"))["code"] == "INVALID_REQUEST"


async def test_answers_of_concurrent_commands_do_not_mix(tools):
    answers = await asyncio.gather(*(tools.call("exec", cmd=["echo", str(i)]) for i in range(20)))
    assert [answer["stdout"] for answer in answers] == [f"{i}\n" for i in range(20)]
