"""Commands on an existing sandbox, run on its event loop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from sandkasten import AsyncSandbox
from sandkasten.errors import (
    Conflict,
    ExecNotFound,
    InvalidRequest,
    IsADirectory,
    SessionNotFound,
)
from sandkasten.model.commands.exec_values import Why
from sandkasten.model.sandbox.network_refusals import Refusal
from sandkasten_server.cli.commands import cp, exec, listings, sandbox_lifecycle
from sandkasten_server.cli.commands.exec import CommandLine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def box():
    async with AsyncSandbox(backend="unisolated", url="embedded", labels={"team": "a"}) as made:
        yield made


def _order(*command: str, **more: object) -> CommandLine:
    return CommandLine(command[0] if len(command) == 1 else command, more)  # type: ignore[arg-type]


async def test_one_word_goes_to_the_shell_that_remembers(box, state, capfd):
    assert await exec.execute(state, box.id, _order("cd /tmp; A=kept")) == 0
    assert await exec.execute(state, box.id, _order("pwd; echo $A >&2; exit 3")) == 3
    out, err = capfd.readouterr()
    assert out == "/tmp\n"
    assert err.startswith("kept\n")


async def test_several_words_are_a_program(box, state, capfd):
    assert await exec.execute(state, box.id, _order("echo", "a b", "$HOME")) == 0
    assert capfd.readouterr().out == "a b $HOME\n"


async def test_a_unique_id_prefix_is_enough(box, state, capfd):
    assert await exec.execute(state, box.id[:8], _order("echo", "hi")) == 0
    assert await exec.execute(state, box.id[4:10], _order("echo", "hi")) == 0
    assert capfd.readouterr().out == "hi\nhi\n"
    with pytest.raises(SessionNotFound):
        await exec.execute(state, "zzz", _order("true"))


async def test_a_timed_out_command_exits_with_124(box, state):
    assert await exec.execute(state, box.id, _order("sleep", "60", timeout_seconds=0.2)) == 124


async def test_a_signalled_command_exits_with_128_plus_the_signal(box, state):
    process = await box.start(["sleep", "60"])
    await process.kill()
    result = await process.wait()
    from sandkasten_server.cli.exit_status import status_of

    assert status_of(result.exit_code, result.signal, timed_out=result.timed_out) == 137


async def test_exec_prints_its_result_as_json(box, state, capfd):
    state.json = True
    assert await exec.execute(state, box.id, _order("echo hi; exit 2")) == 2
    answer = json.loads(capfd.readouterr().out)
    assert (answer["stdout"], answer["exit_code"], answer["status"]) == ("hi\n", 2, "completed")


async def test_ls_shows_the_sandboxes(box, state, capfd):
    await listings.sandboxes(state)
    head, row = capfd.readouterr().out.splitlines()
    assert (
        " ".join(head.split()) == "ID IMAGE BACKEND STATE AGE EXPIRES MEMORY WORKSPACE KEY LABELS"
    )
    cells = dict(zip(head.split(), row.split(), strict=True))
    assert (cells["ID"], cells["BACKEND"], cells["STATE"]) == (box.id, "unisolated", "running")
    assert (cells["EXPIRES"], cells["LABELS"]) == ("29m", "team=a")
    await listings.sandboxes(state, quiet=True)
    assert capfd.readouterr().out == f"{box.id}\n"
    state.json = True
    await listings.sandboxes(state, quiet=True)
    assert json.loads(capfd.readouterr().out) == [box.id]
    await listings.sandboxes(state)
    (told,) = json.loads(capfd.readouterr().out)
    assert {"id", "sandbox_id", "session_id", "image", "backend", "status", "workdir"} <= set(told)
    assert {"created_at", "expires_at", "limits", "labels", "memory_bytes"} <= set(told)


async def test_ps_escapes_hostile_command_lines(box, state, capfd):
    await box.start(["sh", "-c", "sleep 60", "\x1b]0;owned\x07\x1b[2J\u202e"])
    await listings.processes(state, box.id)
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out
    state.json = True
    await listings.processes(state, box.id)
    assert all(one["pid"] > 0 for one in json.loads(capfd.readouterr().out))


async def test_stats_prints_the_usage(box, state, capfd):
    await listings.stats(state, box.id, follow=False, interval_s=1)
    assert capfd.readouterr().out.startswith("WHAT")
    await listings.stats(state, None, follow=False, interval_s=1)
    head, row = capfd.readouterr().out.splitlines()
    assert " ".join(head.split()) == "ID STATE CPU MEMORY LIMIT PROCESSES LIMIT"
    assert row.split()[:2] == [box.id, "running"]
    state.json = True
    await listings.stats(state, box.id, follow=False, interval_s=1)
    assert "usage" in json.loads(capfd.readouterr().out)
    await listings.stats(state, None, follow=False, interval_s=1)
    (one,) = json.loads(capfd.readouterr().out)
    assert (one["id"], "memory_bytes" in one["usage"]) == (box.id, True)


@pytest.mark.parametrize("which", ["one", "all"])
async def test_stats_follows_until_it_is_stopped(box, state, capfd, which):
    start = box.id if which == "one" else None
    state.json = True
    following = asyncio.create_task(listings.stats(state, start, follow=True, interval_s=0.01))
    seen = ""
    async with asyncio.timeout(PATIENCE_S):
        while seen.count("\n") < 3:
            await asyncio.sleep(0.01)
            seen += capfd.readouterr().out
    following.cancel()
    await asyncio.wait({following})
    assert [json.loads(line)[0]["id"] for line in seen.splitlines()[:3]] == [box.id] * 3


async def test_a_detached_command_is_read_followed_and_killed(box, state, capfd):
    await exec.detach(state, box.id, _order("cd /tmp; echo one; echo two >&2; sleep 600"))
    the_id = capfd.readouterr().out.strip()
    # The persistent shell is free.
    assert await exec.execute(state, box.id, _order("echo $PWD")) == 0
    assert capfd.readouterr().out == "/workspace\n"
    process = box.process(the_id)
    async with asyncio.timeout(PATIENCE_S), process.follow() as stream:
        assert {(await anext(stream)).text, (await anext(stream)).text} == {"one\n", "two\n"}
    await exec.logs(state, box.id, the_id[:8], follow=False)
    assert capfd.readouterr() == ("one\n", "two\n")
    following = asyncio.create_task(exec.logs(state, box.id, the_id, follow=True))
    # It goes on while the command does.
    assert (await asyncio.wait({following}, timeout=1.0))[0] == set()
    await exec.kill(state, box.id, the_id, "TERM")
    await asyncio.wait_for(following, PATIENCE_S)
    out, err = capfd.readouterr()
    assert (sorted(out.split()), err) == (sorted([the_id, "one"]), "two\n")
    assert (await process.poll()).signal == 15
    with pytest.raises(Conflict, match="has already ended"):
        await exec.kill(state, box.id, the_id, "KILL")
    with pytest.raises(ExecNotFound):
        await exec.logs(state, box.id, "nothing", follow=False)


async def test_logs_shows_the_newest_command_unless_another_is_named(box, state, capfd):
    with pytest.raises(ExecNotFound, match="no command ran"):
        await exec.logs(state, box.id, None, follow=False)
    for word in ("first", "last"):
        await (await box.start(["echo", word])).wait()
    await exec.logs(state, box.id, None, follow=False)
    assert capfd.readouterr().out == "last\n"
    state.json = True
    await exec.logs(state, box.id, None, follow=True)
    told = json.loads(capfd.readouterr().out)
    assert (told["stdout"], told["status"]) == ("last\n", "completed")


async def test_a_foreground_command_keeps_the_default_timeout(state):
    limits = {"exec_timeout_seconds": 0.2}
    async with AsyncSandbox(backend="unisolated", url="embedded", limits=limits) as short:
        assert await exec.execute(state, short.id, _order("sleep", "60")) == 124


async def test_inspect_prints_the_sandbox_and_its_commands_as_json(box, state, capfd):
    ended = await box.exec(["sh", "-c", "exit 3"])
    await listings.inspect(state, box.id[:8])
    told = json.loads(capfd.readouterr().out)
    assert (told["id"], told["backend"], told["labels"]) == (box.id, "unisolated", {"team": "a"})
    assert told["idle_timeout_seconds"] == 1800
    (command,) = told["commands"]
    assert (command["exec_id"], command["exit_code"]) == (ended.exec_id, 3)


async def test_files_are_copied_both_ways(box, state, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    await cp.copy(state, str(tmp_path / "a.txt"), f"{box.id}:b.txt")
    await cp.copy(state, str(tmp_path / "a.txt"), f"{box.id}:/tmp")
    await cp.copy(state, str(tmp_path / "a.txt"), f"{box.id}:new/")
    assert await box.read("b.txt") == b"x"
    assert await box.read("/tmp/a.txt") == b"x"
    assert await box.read("new/a.txt") == b"x"
    await cp.copy(state, f"{box.id}:b.txt", str(tmp_path / "c"))
    await cp.copy(state, f"{box.id}:b.txt", str(tmp_path))
    assert (tmp_path / "c").read_text() == (tmp_path / "b.txt").read_text() == "x"


async def test_directories_are_copied_both_ways(box, state, tmp_path):
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/deep/f").write_text("1")
    await cp.copy(state, str(tmp_path / "src"), f"{box.id}:project")
    await cp.copy(state, str(tmp_path / "src"), f"{box.id}:/workspace")
    assert await box.read("project/deep/f") == await box.read("src/deep/f") == b"1"
    (tmp_path / "out").mkdir()
    await cp.copy(state, f"{box.id}:project", str(tmp_path / "out"))
    await cp.copy(state, f"{box.id}:project", str(tmp_path / "fresh"))
    assert (tmp_path / "out/project/deep/f").read_text() == "1"
    assert (tmp_path / "fresh/deep/f").read_text() == "1"


async def test_a_file_can_be_printed_and_a_directory_cannot(box, state, capfdbinary):
    await box.write("blob", b"\xff\x00\n")
    await cp.copy(state, f"{box.id}:blob", "-")
    assert capfdbinary.readouterr().out == b"\xff\x00\n"
    with pytest.raises(IsADirectory):
        await cp.copy(state, f"{box.id}:/tmp", "-")


async def test_one_side_of_a_copy_must_be_in_a_sandbox(box, state):
    for source, destination in [("a", "b"), (f"{box.id}:a", f"{box.id}:b")]:
        with pytest.raises(InvalidRequest, match="one side"):
            await cp.copy(state, source, destination)


async def test_rm_continues_after_a_failure_and_reports_it(state, capfd):
    first = await AsyncSandbox(backend="unisolated", url="embedded")
    second = await AsyncSandbox(backend="unisolated", url="embedded")
    assert await sandbox_lifecycle.remove(state, [first.id], everything=False) == 0
    assert capfd.readouterr().out == f"{first.id}\n"
    assert await sandbox_lifecycle.remove(state, [], everything=True) == 0
    # Sandboxes that wait for a claim are removed too, and this program may have one by now.
    removed = capfd.readouterr().out.splitlines()
    assert (second.id in removed, first.id in removed) == (True, False)
    with pytest.raises(SessionNotFound):
        await sandbox_lifecycle.remove(state, [first.id], everything=False)


def test_exec_refuses_an_option_that_it_does_not_have(cli):
    done = cli("exec", "--stdin", "sbx_0123", "cat")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: exec has no option '--stdin'\nhint: ")
    assert "did you mean --timeout?" in cli("exec", "--timout=5", "sbx_0123", "true").err


async def test_a_refusal_names_the_command_that_allows_it(box, state, capfd):
    refused = Refusal(
        "b.org", 443, "default", "the creator of the sandbox can allow it", allow="b.org:443"
    )
    denied = Refusal("c.org", 80, "deny c.org", "a deny rule refuses it")
    result = replace(await box.exec("true"), refused=(refused, denied))
    rules = {"allow": ["a.org"], "deny": ["c.org"], "secrets": ["KEY"], "inspect": True}
    closed = Refusal("10.0.0.1", 80, "default", "the operator must open it (network.reachable)")
    exec.show(state, replace(result, refused=(closed,)), "sbx_1", rules)
    assert capfd.readouterr().err.splitlines() == [
        "warning: the network refused 10.0.0.1:80: no rule allows it",
        "hint: the operator must open it (network.reachable)",
    ]
    exec.show(state, result, "sbx_1", rules)
    assert capfd.readouterr().err.splitlines() == [
        "warning: the network refused b.org:443: no rule allows it",
        "warning: the network refused c.org:80: deny c.org",
        "hint: a deny rule refuses it",
        "hint: allow it with: sandkasten update sbx_1 --allow a.org --allow b.org:443 "
        "--deny c.org --secret KEY --inspect",
    ]
    # After `update --network none`: the rules may be given back.
    exec.show(state, replace(result, refused=(refused,)), "sbx_1", "none")
    assert capfd.readouterr().err.splitlines()[-1] == (
        "hint: allow it with: sandkasten update sbx_1 --allow b.org:443"
    )
    exec.show(state, replace(result, refused=(), network_hint="create another"), "sbx_1", "none")
    assert capfd.readouterr().err == "hint: create another\n"
    exec.show(state, result)
    assert "hint: the creator of the sandbox can allow it" in capfd.readouterr().err


async def test_the_own_ctrl_c_is_not_explained(box, state, capfd):
    why = Why("SIGNAL", "a request sent it a signal (SIGINT)", "start it again")
    ended = replace(await box.exec("true"), status="killed", exit_code=None, signal=2, why=why)
    assert exec.show(state, ended) == 130
    assert "a request sent it a signal" in capfd.readouterr().err
    state.interrupted = True
    assert exec.show(state, ended) == 130
    assert capfd.readouterr().err == ""


def test_a_limit_that_is_not_enforced_is_told_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert sandbox_lifecycle._first_since_boot("memory is not enforced")
    assert not sandbox_lifecycle._first_since_boot("memory is not enforced")
    assert sandbox_lifecycle._first_since_boot("cpu is not enforced")
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    assert sandbox_lifecycle._first_since_boot("cpu is not enforced")
    assert sandbox_lifecycle._first_since_boot("cpu is not enforced")
