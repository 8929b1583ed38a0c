"""Commands over HTTP: every spelling of a request, and complete results."""

from __future__ import annotations

import asyncio
import base64

import pytest

from sandkasten.model.journal_rows import ExecRow, SessionRow
from tests.engine.injections import GO, UNTIL_GO
from tests.patience import DEADLINES_S

PROMISED = {
    *("exec_id", "status", "exit_code", "signal", "stdout", "stderr", "output", "cwd"),
    *("truncated", "timed_out", "oom_killed", "shell_reset", "duration_ms", "usage", "why"),
    "network",
    *("stdout_bytes", "stderr_bytes", "last_seq", "pid", "shell", "started_at"),
}


@pytest.fixture
async def box(daemon):
    return f"/v1/sessions/{await daemon.session()}"


@pytest.mark.promise("P37")
async def test_an_exec_returns_every_documented_field(daemon, box):
    reply = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo out; echo err >&2"})
    assert reply.status == 200
    assert set(reply.json) == PROMISED
    assert reply.json["stdout"] == "out\n"
    assert reply.json["stderr"] == "err\n"
    assert reply.json["exit_code"] == 0
    assert reply.json["status"] == "completed"
    assert reply.json["cwd"] == "/workspace"
    assert set(reply.json["usage"]) == {
        *("cpu_ms", "peak_memory_bytes", "io_read_bytes", "io_write_bytes")
    }


@pytest.mark.promise("P37")
@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"cmd": ["echo", "a b"]}, "a b\n"),
        ({"command": ["echo", "a"]}, "a\n"),
        ({"command": "echo a"}, "a\n"),
        ({"cmd": "cat", "stdin": "wörd"}, "wörd"),
        ({"cmd": "cat", "stdin_b64": base64.b64encode(b"bytes").decode()}, "bytes"),
        ({"cmd": "pwd", "cwd": "/tmp"}, "/tmp\n"),
        ({"cmd": "pwd", "workdir": "/tmp"}, "/tmp\n"),
        ({"cmd": "echo $A", "env": {"A": "1"}}, "1\n"),
        ({"cmd": "echo a", "timeout_ms": 0}, "a\n"),
        ({"cmd": "echo a", "timeout_ms": 30000, "raw_output": False}, "a\n"),
    ],
)
async def test_every_spelling_of_a_command_is_accepted(daemon, box, body, output):
    assert (await daemon.ask("POST", f"{box}/exec", body)).json["output"] == output


async def test_a_string_goes_to_the_persistent_shell_and_a_list_does_not(daemon, box):
    await daemon.ask("POST", f"{box}/exec", {"cmd": "cd /tmp; A=7"})
    kept = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo $A; pwd"})
    assert kept.json["output"] == "7\n/tmp\n"
    apart = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo $A", "stateful": False})
    assert apart.json["output"] == "\n"
    other = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo $A", "shell": "second"})
    assert other.json["output"] == "\n"


@pytest.mark.promise("P13")
async def test_milliseconds_override_seconds_and_a_timeout_is_a_result(daemon, box):
    for timeout_s in DEADLINES_S:
        body = {"cmd": "echo begun; sleep 99", "timeout_ms": timeout_s * 1000}
        reply = await daemon.ask("POST", f"{box}/exec", {**body, "timeout_seconds": 98})
        assert reply.status == 200
        if reply.json["stdout"]:
            break
    assert (reply.json["status"], reply.json["timed_out"]) == ("timed_out", True)
    assert reply.json["stdout"] == "begun\n"
    assert reply.json["why"]["code"] == "TIMEOUT"


@pytest.mark.promise("P13")
async def test_a_timeout_is_an_error_on_request(daemon, box):
    for timeout_s in DEADLINES_S:
        body = {"cmd": "echo begun; sleep 99", "timeout_ms": timeout_s * 1000}
        reply = await daemon.ask("POST", f"{box}/exec", {**body, "error_on_timeout": True})
        assert (reply.status, reply.json["code"]) == (504, "COMMAND_TIMEOUT")
        if reply.json["details"]["stdout"]:
            break
    assert reply.json["details"]["stdout"] == "begun\n"


@pytest.mark.promise("P14")
async def test_output_that_is_not_utf8_is_returned_as_bytes_beside_the_text(daemon, box):
    reply = await daemon.ask("POST", f"{box}/exec", {"cmd": r"printf 'a\377b'"})
    assert reply.json["stdout"] == "a�b"
    assert base64.b64decode(reply.json["stdout_b64"]) == b"a\xffb"
    assert base64.b64decode(reply.json["output_b64"]) == b"a\xffb"
    assert "stderr_b64" not in reply.json


async def test_a_background_command_is_polled_read_and_waited_for(daemon, box):
    begun = await daemon.ask(
        "POST",
        f"{box}/exec",
        {"cmd": ["sh", "-c", f"echo 1; {UNTIL_GO}; echo 2"], "background": True},
    )
    assert (begun.status, begun.json["status"]) == (202, "running")
    assert begun.json["exit_code"] is None
    where = f"{box}/execs/{begun.json['exec_id']}"
    first = await daemon.ask("GET", f"{where}/output?wait=40")
    assert [one["text"] for one in first.json["chunks"]] == ["1\n"]
    assert first.json["done"] is False
    since = first.json["next_seq"]
    nothing = await daemon.ask("GET", f"{where}/output?since_seq={since}")
    assert (nothing.json["chunks"], nothing.json["next_seq"]) == ([], since)
    await daemon.ask("POST", f"{box}/fs/write", {"path": GO, "text": ""})
    second = await daemon.ask("GET", f"{where}/output?since_seq={since}&wait=40")
    assert [one["text"] for one in second.json["chunks"]] == ["2\n"]
    whole = await daemon.ask("GET", f"{where}?wait_seconds=40")
    assert (whole.json["status"], whole.json["stdout"]) == ("completed", "1\n2\n")
    last = await daemon.ask("GET", f"{where}/output?since_seq=0&max_chunks=1")
    assert (len(last.json["chunks"]), last.json["done"]) == (1, False)


@pytest.mark.promise("P16")
async def test_one_idempotency_key_runs_one_command(daemon, box):
    body = {"cmd": "echo x >> n; wc -l < n", "idempotency_key": "once"}
    first = await daemon.ask("POST", f"{box}/exec", body)
    del body["idempotency_key"]
    again = await daemon.ask("POST", f"{box}/exec", body, headers={"Idempotency-Key": "once"})
    assert again.json["exec_id"] == first.json["exec_id"]
    assert again.json["output"] == first.json["output"]
    other = await daemon.ask("POST", f"{box}/exec", {"cmd": "true", "idempotency_key": "once"})
    assert (other.status, other.json["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


@pytest.mark.promise("P20", "P37")
async def test_a_directory_whose_name_is_not_utf_8_is_answered_in_both_forms(daemon, box):
    odd = r"mkdir -p $'b\xff'; cd $'b\xff'; echo did"
    first = (await daemon.ask("POST", f"{box}/exec", {"cmd": odd})).json
    assert (first["stdout"], first["cwd"].rpartition("/")[2]) == ("did\n", "b\ufffd")
    assert base64.b64decode(first["cwd_b64"]).endswith(b"/b\xff")
    later = await daemon.ask("POST", f"{box}/exec", {"cmd": "echo later"})
    assert (later.status, later.json["stdout"], later.json["cwd_b64"]) == (
        200,
        "later\n",
        first["cwd_b64"],
    )
    past = await daemon.ask("GET", f"{box}/execs")
    assert [one["cwd_b64"] for one in past.json] == [first["cwd_b64"]] * 2
    one = await daemon.ask("GET", f"{box}/execs/{first['exec_id']}")
    assert one.json["cwd_b64"] == first["cwd_b64"]
    stream = await daemon.ask("POST", f"{box}/exec/stream", {"cmd": "true"})
    assert (stream.status, b"event: done" in stream.raw) == (200, True)
    session = await daemon.ask("GET", box)
    assert (session.status, session.json["cwd_b64"]) == (200, first["cwd_b64"])
    missing = base64.urlsafe_b64encode(b"no-\xfe").decode()
    gone = await daemon.ask("GET", f"{box}/fs/read?path_b64={missing}")
    assert (gone.status, gone.json["code"]) == (404, "FILE_NOT_FOUND")


async def test_stdin_is_written_closed_and_signals_arrive(daemon, box):
    body = {"cmd": ["cat"], "background": True, "keep_stdin_open": True}
    where = f"{box}/execs/{(await daemon.ask('POST', f'{box}/exec', body)).json['exec_id']}"
    raw = {"headers": {"Content-Type": "application/octet-stream"}}
    assert (await daemon.ask("POST", f"{where}/stdin", data=b"raw ", **raw)).json["ok"]
    assert (await daemon.ask("POST", f"{where}/stdin", {"data": "text "})).json["bytes"] == 5
    encoded = base64.b64encode(b"bytes").decode()
    assert (await daemon.ask("POST", f"{where}/stdin", {"data_b64": encoded})).status == 200
    assert (await daemon.ask("POST", f"{where}/close-stdin")).status == 200
    ended = await daemon.ask("GET", f"{where}?wait_seconds=40")
    assert (ended.json["stdout"], ended.json["exit_code"]) == ("raw text bytes", 0)

    asleep = {"cmd": ["sleep", "30"], "background": True}
    for name, number in (("TERM", 15), ("SIGKILL", 9), (2, 2)):
        begun = (await daemon.ask("POST", f"{box}/exec", asleep)).json["exec_id"]
        sent = await daemon.ask("POST", f"{box}/execs/{begun}/signal", {"signal": name})
        assert sent.json["signal"] == number
        ended = await daemon.ask("GET", f"{box}/execs/{begun}?wait_seconds=40")
        assert (ended.json["status"], ended.json["signal"]) == ("killed", number)
        assert ended.json["exit_code"] is None


async def test_a_terminal_has_one_stream(daemon, box):
    for pty in (True, {"rows": 30, "cols": 100}):
        reply = await daemon.ask("POST", f"{box}/exec", {"cmd": ["echo", "a"], "pty": pty})
        assert reply.json["stdout"].strip() == "a"
        assert reply.json["stderr"] == ""


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"cmd": "a", "command": "b"},
        {"cmd": None},
        {"cmd": 7},
        {"cmd": ["echo", 7]},
        {"cmd": "a", "timeout_ms": True},
        {"cmd": "a", "timeout_ms": -1},
        {"cmd": "a", "timeout_seconds": "5"},
        {"cmd": "a", "stdin": "a", "stdin_b64": "YQ=="},
        {"cmd": "a", "stdin_b64": "not base64!"},
        {"cmd": "a", "pty": {"rows": 0}},
        {"cmd": "a", "env": {"A": 1}},
        {"cmd": "a", "stream": True, "background": True},
        {"cmd": "a", "timeout": 5},
    ],
)
async def test_an_invalid_command_is_refused_and_names_the_field(daemon, box, body):
    reply = await daemon.ask("POST", f"{box}/exec", body)
    assert (reply.status, reply.json["code"]) == (422, "INVALID_REQUEST")
    assert reply.json["details"]["field"]


async def test_a_missing_program_and_an_unknown_exec_are_errors(daemon, box):
    reply = await daemon.ask("POST", f"{box}/exec", {"cmd": ["nosuch"]})
    assert (reply.status, reply.json["code"]) == (404, "COMMAND_NOT_FOUND")
    for eid in ("exe_0000000000000000", "a;rm", "..%2fx", "x" * 300):
        reply = await daemon.ask("GET", f"{box}/execs/{eid}")
        assert reply.status == 404


@pytest.mark.promise("P32")
async def test_the_history_combines_the_sandbox_and_the_journal(daemon, box, journal):
    session = box.rpartition("/")[2]
    first = (await daemon.ask("POST", f"{box}/exec", {"cmd": "echo 1"})).json["exec_id"]
    await asyncio.sleep(0.01)
    second = (await daemon.ask("POST", f"{box}/exec", {"cmd": "exit 3"})).json["exec_id"]
    listed = await daemon.ask("GET", f"{box}/execs")
    assert [one["exec_id"] for one in listed.json] == [second, first]
    assert listed.json[0]["exit_code"] == 3

    daemon.server.stores.journal = daemon.server.engine._history._journal = journal
    row = SessionRow(session, "default", "host", "unisolated", created_at=1.0)
    await journal.begin_session(row)
    old = ExecRow("exe_old", session, "default", "make", "completed", 1.0, exit_code=2, cpu_ms=7)
    journal.note_exec(old)
    journal.note_exec(ExecRow(first, session, "default", "echo 1", "completed", 2.0, exit_code=0))
    journal.note_exec(ExecRow(second, session, "default", "exit 3", "killed", 3.0, why="OOM"))
    await journal.flush()
    listed = await daemon.ask("GET", f"{box}/execs")
    assert [one["exec_id"] for one in listed.json] == [second, first, "exe_old"]
    assert (listed.json[0]["why"]["code"], listed.json[0]["oom_killed"]) == ("OOM", True)
    assert (listed.json[1]["why"], listed.json[1]["oom_killed"]) == (None, False)
    assert listed.json[1]["command"] == "echo 1"
    assert listed.json[2]["usage"]["cpu_ms"] == 7
    await daemon.ask("DELETE", box)
    after = await daemon.ask("GET", f"{box}/execs")
    assert [one["exec_id"] for one in after.json] == [second, first, "exe_old"]
    past = await daemon.ask("GET", f"{box}/execs/exe_old")
    assert (past.json["exit_code"], past.json["output_kept"]) == (2, False)
    assert (await daemon.ask("GET", f"{box}/execs/exe_other")).status in (404, 410)
