"""Commands on an existing sandbox, run on its event loop."""

from __future__ import annotations

import json

import pytest

from sandkasten import AsyncSandbox
from sandkasten.cli.commands import cp, exec, listings, sandbox_lifecycle
from sandkasten.cli.commands.exec import CommandLine
from sandkasten.errors import InvalidRequest, IsADirectory, SessionNotFound

pytestmark = pytest.mark.anyio


@pytest.fixture
async def box():
    async with AsyncSandbox(backend="unisolated", labels={"team": "a"}) as made:
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
    from sandkasten.cli.state import status_of

    assert status_of(result.exit_code, result.signal, timed_out=result.timed_out) == 137


async def test_exec_prints_its_result_as_json(box, state, capfd):
    state.json = True
    assert await exec.execute(state, box.id, _order("echo hi; exit 2")) == 2
    answer = json.loads(capfd.readouterr().out)
    assert (answer["stdout"], answer["exit_code"], answer["status"]) == ("hi\n", 2, "completed")


async def test_ls_shows_the_sandboxes(box, state, capfd):
    await listings.sandboxes(state)
    head, row = capfd.readouterr().out.splitlines()
    assert " ".join(head.split()) == "ID IMAGE STATE AGE MEMORY WORKSPACE KEY LABELS"
    assert row.startswith(box.id)
    assert "running" in row
    assert "team=a" in row
    state.json = True
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
    await listings.stats(state, box.id)
    assert capfd.readouterr().out.startswith("WHAT")
    state.json = True
    await listings.stats(state, box.id)
    assert "usage" in json.loads(capfd.readouterr().out)


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
    first = await AsyncSandbox(backend="unisolated")
    second = await AsyncSandbox(backend="unisolated")
    assert await sandbox_lifecycle.remove(state, [first.id], everything=False) == 0
    assert capfd.readouterr().out == f"{first.id}\n"
    assert await sandbox_lifecycle.remove(state, [], everything=True) == 0
    assert capfd.readouterr().out == f"{second.id}\n"
    with pytest.raises(SessionNotFound):
        await sandbox_lifecycle.remove(state, [first.id], everything=False)
