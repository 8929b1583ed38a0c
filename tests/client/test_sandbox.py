"""The synchronous client: everything a program sees of a sandbox."""

from __future__ import annotations

import io
import pickle
import subprocess

import pytest

import sandkasten
from sandkasten import Sandbox
from tests.patience import PATIENCE_S


def test_the_shell_remembers(box):
    box.exec("cd /tmp && export A=1")
    result = box.exec("echo $A; pwd")
    assert (result.output, result.exit_code, result.ok, result.cwd) == (
        "1\n/tmp\n",
        0,
        True,
        "/tmp",
    )


def test_a_failed_command_is_a_result(box):
    result = box.exec("false")
    assert (result.ok, result.exit_code, result.status) == (False, 1, "completed")


def test_the_exit_status_is_the_one_of_a_shell_and_never_invented(box):
    assert box.exec(["sh", "-c", "exit 3"]).exit_status == 3
    killed = box.exec(["sh", "-c", "kill -9 $$"])
    assert (killed.exit_code, killed.exit_status) == (None, 137)
    assert box.run("kill -15 $$", "bash").exit_status == 143
    running = box.start(["sleep", "100"])
    assert (running.poll().exit_code, running.poll().exit_status) == (None, None)
    running.kill()
    assert running.wait().exit_status == 137


def test_a_closed_shell_is_gone_and_an_unknown_one_is_an_error(box):
    box.exec("A=1")
    box.close_shell()
    assert box.exec("echo $A").output == "\n"
    with pytest.raises(sandkasten.ShellNotFound, match="no shell never is open"):
        box.close_shell("never")


def test_check_raises_the_failure_of_the_command(box):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        box.exec(["sh", "-c", "echo seen; exit 3"], check=True)
    assert (caught.value.returncode, caught.value.output) == (3, "seen\n")
    assert box.exec("true", check=True).ok


def test_check_raises_command_timeout_for_a_deadline(box):
    with pytest.raises(sandkasten.CommandTimeout):
        box.exec(["sleep", "60"], timeout_ms=100, check=True)


def test_a_deadline_is_a_result_and_milliseconds_override_seconds(box):
    result = box.exec(["sleep", "60"], timeout_ms=100, timeout_seconds=50)
    assert (result.timed_out, result.status, result.ok) == (True, "timed_out", False)


def test_stdin_env_and_cwd_reach_the_command(box):
    assert box.exec(["cat"], stdin="text in").stdout == "text in"
    assert box.exec(["cat"], stdin=b"\xff\x00").stdout_data == b"\xff\x00"
    assert box.exec(["sh", "-c", "echo $B; pwd"], env={"B": "x"}, cwd="/tmp").stdout == "x\n/tmp\n"


def test_bytes_that_are_not_utf8_are_kept_beside_the_text(box):
    result = box.exec(["cat"], stdin=b"a\xffb")
    assert (result.stdout, result.stdout_data) == ("a\ufffdb", b"a\xffb")
    assert result.as_dict()["stdout_b64"] == "Yf9i"
    assert "stdout_b64" not in box.exec(["echo", "plain"]).as_dict()


def test_the_result_has_every_field_of_the_contract(box):
    assert list(box.exec("true").as_dict()) == [
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
        "network",
    ]


@pytest.mark.parametrize("cmd", [b"ls", ["ls", 1], 7, None])
def test_a_command_of_the_wrong_type_is_refused_by_name(box, cmd):
    with pytest.raises(sandkasten.InvalidRequest):
        box.exec(cmd)


def test_unknown_arguments_are_errors(box):
    with pytest.raises(TypeError):
        box.exec("true", timeout=3)
    with pytest.raises(TypeError):
        box.write("a", b"", encoding="utf-8")
    with pytest.raises(TypeError):
        Sandbox(backend="unisolated", memory=3)  # type: ignore[call-arg]


def test_files_are_written_and_read(box):
    assert box.write("a.txt", "grün").path == "/workspace/a.txt"
    content = box.read("a.txt")
    assert content == "grün".encode()
    assert (content.path, content.truncated, content.size) == ("/workspace/a.txt", False, 5)
    assert (content.text, content.content) == ("grün", "grün".encode())
    again = pickle.loads(pickle.dumps(content))
    assert (again, again.path) == (content, content.path)
    assert type(again) is sandkasten.FileBytes


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_every_kind_of_data_is_written_exactly(box, kind):
    data = bytes(range(256)) * 10_000
    box.write("blob", kind(data))
    assert box.read("blob") == data


def test_a_text_file_object_is_refused(box):
    with pytest.raises(sandkasten.InvalidRequest, match="bytes"):
        box.write("a", io.StringIO("text"))
    with pytest.raises(sandkasten.InvalidRequest):
        box.write("a", 12)
    assert not box.exists("a")


def test_a_part_of_a_file_can_be_read(box):
    box.write("a", b"0123456789")
    assert box.read("a", offset=2, limit=3) == b"234"
    cut = box.read("a", max_bytes=4)
    assert (cut, cut.truncated, cut.size) == (b"0123", True, 10)


def test_directories_are_listed_created_moved_and_removed(box):
    box.mkdir("d/e")
    box.write("d/e/f", b"1")
    assert [entry.name for entry in box.ls("d", recursive=True)] == ["e", "f"]
    assert len(box.ls("d", recursive=True, limit=1)) == 1
    box.move("d/e/f", "d/g")
    assert box.stat("d/g").size == 1
    with pytest.raises(sandkasten.DirectoryNotEmpty):
        box.remove("d")
    assert box.remove("d", recursive=True) == 3
    assert not box.exists("d")
    with pytest.raises(sandkasten.FileNotFound):
        box.stat("d")


def test_leaving_the_block_destroys_the_sandbox_also_after_an_error():
    names = []

    def work() -> None:
        with Sandbox(backend="unisolated") as box:
            names.append(box.id)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()
    assert names[0] not in [info.id for info in Sandbox.list(backend="unisolated")]


def test_a_closed_sandbox_is_an_error_and_closing_again_succeeds():
    box = Sandbox(backend="unisolated")
    box.close()
    box.close()
    with pytest.raises(sandkasten.SessionNotFound, match="was closed"):
        box.exec("true")


def test_detach_keeps_the_sandbox_and_attach_finds_it():
    with Sandbox(backend="unisolated") as first:
        first.exec("export KEPT=yes")
        name = first.detach()
    with Sandbox.attach(name, backend="unisolated") as second:
        assert second.exec("echo $KEPT").output == "yes\n"
    assert name in [info.id for info in Sandbox.list(backend="unisolated")]
    with Sandbox.attach(name, backend="unisolated", destroy_on_exit=True):
        pass
    assert name not in [info.id for info in Sandbox.list(backend="unisolated")]


def test_attaching_to_an_unknown_id_is_session_not_found():
    with pytest.raises(sandkasten.SessionNotFound):
        Sandbox.attach("sbx_0000000000000000", backend="unisolated")


def test_a_session_key_finds_the_live_sandbox_and_does_not_end_it():
    with Sandbox(backend="unisolated", session_key="mine") as first:
        with Sandbox(backend="unisolated", session_key="mine") as second:
            assert second.id == first.id
        assert first.exec("echo alive").output == "alive\n"


def test_output_is_followed_as_it_arrives(box):
    with box.exec_stream(["sh", "-c", "echo one; echo two >&2"]) as stream:
        pieces = {(piece.stream, piece.text) for piece in stream}
        assert pieces == {("stdout", "one\n"), ("stderr", "two\n")}
        assert stream.result.exit_code == 0


def test_the_result_of_a_stream_is_unavailable_before_its_end(box):
    stream = box.exec_stream("echo x")
    with pytest.raises(sandkasten.InvalidRequest, match="not ended"):
        _ = stream.result
    assert stream.wait().output == "x\n"


def test_an_error_of_a_stream_is_raised_where_it_is_read(box):
    with pytest.raises(sandkasten.CommandNotFound):
        list(box.exec_stream(["no-such-program"]))


def test_leaving_a_stream_early_does_not_stop_the_command(box):
    with box.exec_stream(["sh", "-c", "echo begun; sleep 60"]) as stream:
        assert next(stream).text == "begun\n"
    assert [one.status for one in box.execs()] == ["running"]


def test_a_background_command_has_a_handle(box):
    process = box.start(["cat"], keep_stdin_open=True)
    assert process.poll().running
    process.write_stdin("hello ")
    process.write_stdin(b"there")
    process.close_stdin()
    result = process.wait(timeout_seconds=PATIENCE_S)
    assert (result.stdout, result.exit_code) == ("hello there", 0)
    assert "".join(piece.text for piece in process.output()) == "hello there"
    assert process.output(since_seq=result.last_seq) == []
    assert box.process(process.exec_id).poll().stdout == "hello there"


def test_waiting_can_end_before_the_command(box):
    process = box.start(["sleep", "60"])
    assert process.wait(timeout_seconds=0.05).running
    process.signal("TERM")
    assert process.wait(timeout_seconds=PATIENCE_S).signal == 15


def test_code_runs_in_an_existing_sandbox(box):
    box.exec("export NOTHING=1")
    answer = box.run(
        'cat "$1"; echo "$Z"', "sh", files={"in.txt": "data\n"}, args=["in.txt"], env={"Z": "z"}
    )
    assert (answer.ok, answer.stdout, answer.runtime) == (True, "data\nz\n", "sh")
    assert [entry.name for entry in box.ls()] == ["in.txt"]
    failed = box.run("exit 4", "sh")
    assert (failed.ok, failed.exit_code, failed.error) == (
        False,
        4,
        "the code ended with exit status 4",
    )


def test_an_unknown_runtime_is_refused_with_the_nearest_one(box):
    with pytest.raises(sandkasten.InvalidRequest) as caught:
        box.run("1", "pyhton")
    assert caught.value.hint == "did you mean python?"


def test_one_shot_leaves_nothing_behind():
    before = [info.id for info in Sandbox.list(backend="unisolated")]
    answer = sandkasten.run(
        "cat a; echo made > out.txt",
        "sh",
        files={"a": b"in\n"},
        artifacts=["*.txt"],
        backend="unisolated",
    )
    assert (answer.stdout, answer.exit_code) == ("in\n", 0)
    assert [(one.path, one.data) for one in answer.artifacts] == [("out.txt", b"made\n")]
    assert answer.as_dict()["artifacts"][0]["content_base64"] == "bWFkZQo="
    assert [info.id for info in Sandbox.list(backend="unisolated")] == before


def test_changes_to_files_are_watched(box):
    with box.watch() as changes:
        box.start(["sh", "-c", "while true; do echo x > seen; sleep 0.1; done"])
        assert next(changes).path == "/workspace/seen"


def test_a_terminal_runs_a_program(box):
    with box.terminal(["sh"], rows=10, cols=40) as terminal:
        terminal.send("A=42; echo in-$A\nexit 7\n")
        seen = b"".join(terminal)
        assert terminal.result().exit_code == 7
    assert b"in-42" in seen


def test_stats_and_processes_are_returned(box):
    assert box.stats().processes >= 1
    assert all(process.pid > 0 for process in box.processes())
    assert box.info().id == box.id


@pytest.mark.promise("P30")
def test_lifetime_and_labels_of_a_live_sandbox_can_be_changed(box):
    assert box.update(ttl_seconds=500, labels={"a": "b"}).idle_timeout_s == 500
    info = box.info()
    assert (info.idle_timeout_s, info.labels) == (500, {"a": "b"})
    assert box.update(labels={}).labels == {}
