"""Where a command runs: a named daemon, the daemon of the data directory, or this process."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from sandkasten.client.server.daemon_or_embedded import answers
from sandkasten.errors import InvalidRequest
from sandkasten_server.cli.state import State
from tests.cli.conftest import UNISOLATED
from tests.cli.terminal import Person
from tests.client.http.served import KEY, Served, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon(tmp_path: Path, unisolated_only: None) -> Iterator[Served]:
    """A daemon on the data directory of the environment, where the command line finds it."""
    with served(tmp_path / "data") as one:
        yield one


@pytest.fixture
def box(daemon: Served, cli) -> str:
    made = cli("create", "--label", "a=b")
    assert made.status == 0, made.err
    return made.out.strip()


@pytest.mark.promise("P35")
def test_a_daemon_of_the_same_data_directory_is_used(daemon, cli, box):
    # An unisolated sandbox lives in the process that created it: this one is the daemon's.
    assert [one["id"] for one in json.loads(cli("ls", "--json").out)] == [box]
    assert json.loads(cli("--embedded", "ls", "--json").out) == []
    assert cli("exec", box, "cd /tmp; export A=1").status == 0
    assert cli("exec", box, "echo $A; pwd").out == "1\n/tmp\n"


def test_a_relative_data_directory_with_any_name_is_the_same_one(cli, tmp_path, unisolated_only):
    with served(tmp_path / "100%20 data"):
        where = ("--data-dir", os.path.relpath(tmp_path / "100%20 data"))
        box = cli(*where, "create").out.strip()
        assert cli(*where, "ls", "-q").out == f"{box}\n"
        assert cli(*where, "exec", box, "echo ok").out == "ok\n"
        assert cli(*where, "image", "ls").status == 0


def test_every_command_that_shows_a_sandbox_works_through_a_daemon(cli, box, tmp_path):
    assert "COMMAND" in cli("ps", box).out
    assert json.loads(cli("stats", box, "--json").out)["usage"]["pids_limit"] == 256
    listed = json.loads(cli("ls", "--json").out)[0]
    assert (listed["labels"], listed["limits"]["pids_limit"]) == ({"a": "b"}, 256)
    changed = json.loads(cli("update", box, "--label", "c=d", "--ttl", "99", "--json").out)
    assert changed["labels"] == {"c": "d"}
    assert cli("update", box).status == 2
    (tmp_path / "in").write_text("content")
    assert cli("cp", str(tmp_path / "in"), f"{box}:/workspace/there").status == 0
    assert cli("cp", f"{box}:there", "-").out == "content"
    assert cli("cp", f"{box}:nothing", str(tmp_path / "out")).status == 125
    for way in ((f"{box}:there", "-"), (str(tmp_path / "in"), f"{box}:there")):
        assert "only profile dev has other users" in cli("cp", "--user", "root", *way).err


def test_background_commands_work_through_a_daemon(cli, box):
    started = cli("exec", "-d", box, "cd /tmp; pwd; read line; echo $line")
    the_id = started.out.strip()
    assert cli("logs", "-f", box, the_id).out == "/tmp\n\n"
    assert [one["exec_id"] for one in json.loads(cli("inspect", box).out)["commands"]] == [the_id]
    asleep = json.loads(cli("exec", "--json", "-d", box, "sleep", "600").out)["exec_id"]
    assert cli("kill", box, asleep).out == f"{asleep}\n"
    assert cli("exec", "-d", "-it", box, "true").status == 2
    assert cli("exec", "--shell", "work", box, "A=1").status == 0
    assert cli("kill", box, "--shell", "work").out == "work\n"
    assert cli("exec", "--shell", "work", box, "echo -$A-").out == "--\n"
    assert "no shell never is open" in cli("kill", box, "--shell", "never").err
    assert cli("kill", box).status == cli("kill", box, asleep, "--shell", "work").status == 2
    assert "only profile dev has other users" in cli("exec", "--user", "app", box, "id").err
    assert cli("exec", "--user", "sandbox", box, "echo ok").out == "ok\n"
    assert cli("exec", "-t", box, "true").err.startswith("error: -t requires a terminal")
    assert cli("ls", "-q").out == f"{box}\n"


def test_a_program_runs_on_our_terminal(daemon, box):
    # An unisolated sandbox lives in its daemon, so that another process can use it.
    with Person([*UNISOLATED, "exec", "-it", "-e", "A=1", "-w", "/usr", box, "sh"]) as person:
        person.type("test -t 0 && echo $A-$PWD-$((6*7))\r")
        person.wait_for("1-/usr-42")
        person.type("exit 6\r")
        assert person.status() == 6


@pytest.mark.promise("P45")
def test_an_operator_can_act_for_a_tenant(daemon, cli, box, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_TENANT", "acme")
    theirs = cli("create").out.strip()
    assert [one["id"] for one in json.loads(cli("ls", "--json").out)] == [theirs]
    assert cli("exec", theirs, "echo hi").out == "hi\n"
    assert cli("exec", box, "true").status == 125
    assert cli("files", "put", __file__, "--key", "k").status == 0
    assert cli("rm", theirs).status == 0
    alone = cli("--embedded", "ls")
    assert alone.status == 125
    assert "SANDKASTEN_TENANT" in alone.err
    assert "SANDKASTEN_TENANT" in cli("--embedded", "files", "ls").err
    monkeypatch.delenv("SANDKASTEN_TENANT")
    assert [one["id"] for one in json.loads(cli("ls", "--json").out)] == [box]
    assert json.loads(cli("files", "ls", "--json").out) == []


def test_workspaces_and_images_are_those_of_the_daemon(daemon, cli):
    assert cli("workspace", "create", "alpha", "--size", "20").status == 0
    assert [one["name"] for one in json.loads(cli("workspace", "ls", "--json").out)] == ["alpha"]
    assert cli("run", "-r", "sh", "--workspace", "alpha", "-c", "echo x > kept").status == 0
    assert cli("run", "-r", "sh", "--workspace", "alpha", "-c", "cat kept").out == "x\n"
    assert json.loads(cli("workspace", "du", "--json").out)[0]["used_bytes"] is not None
    assert cli("workspace", "rm", "alpha").status == 0
    assert json.loads(cli("image", "ls", "--json").out) == []


def test_failures_through_a_daemon_look_the_same(cli, box):
    gone = cli("exec", "sbx_0123456789abcdef", "true", "--json")
    assert gone.status == 125
    said = cli("exec", "--json", "sbx_0123456789abcdef", "true")
    assert json.loads(said.out)["code"] == "SESSION_NOT_FOUND"
    assert cli("rm", box).out == f"{box}\n"
    assert cli("run", "-r", "sh", "-c", "exit 42").status == 42


def test_a_named_daemon_is_contacted_with_its_key(daemon, cli, monkeypatch, tmp_path):
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(tmp_path / "elsewhere"))
    assert cli("--url", daemon.url, "ls").status == 125
    assert cli("--url", daemon.url, "--api-key", KEY, "ls").status == 0
    monkeypatch.setenv("SANDKASTEN_URL", daemon.url)
    monkeypatch.setenv("SANDKASTEN_API_KEY", KEY)
    made = cli("create")
    assert made.status == 0
    assert made.out.strip() in cli("ls").out
    assert made.out.strip() not in cli("--embedded", "ls").out
    assert cli("rm", made.out.strip()).status == 0


def test_a_failing_command_names_the_daemon_that_answered(daemon, cli, monkeypatch):
    said = cli("agent", "run", "Nobody", "a task")
    assert said.status == 125
    last = said.err.splitlines()[-1]
    assert last == (
        f"note: answered by the daemon at unix://{daemon.socket}; "
        "--embedded uses this process instead"
    )
    body = json.loads(cli("ps", "--json", "sbx_0000000000000000").out)
    assert body["details"]["daemon"] == f"unix://{daemon.socket}"
    assert "note:" not in cli("--embedded", "ps", "sbx_0000000000000000").err
    assert "note:" not in cli("--url", daemon.url, "--api-key", KEY, "ps", "sbx_00").err
    monkeypatch.setenv("SANDKASTEN_URL", daemon.url)
    monkeypatch.setenv("SANDKASTEN_API_KEY", KEY)
    assert f"note: answered by the daemon at {daemon.url};" in cli("workflow", "run", "none").err
    # Another process would answer the same.
    assert "note:" not in cli("ps", "sbx_00").err


def test_a_wrong_key_is_answered_with_the_variable_to_set(daemon, cli):
    said = cli("--url", daemon.url, "--api-key", "sk-wrong", "ls")
    assert said.status == 125
    assert "set SANDKASTEN_API_KEY to a key of this daemon" in said.err
    assert "Authorization" not in said.err


@pytest.mark.promise("P35")
def test_an_unreachable_named_daemon_is_an_error_without_fallback(cli, monkeypatch):
    said = cli("--url", "http://127.0.0.1:1", "ls")
    assert said.status == 125
    assert "no daemon answers" in said.err
    monkeypatch.setenv("SANDKASTEN_URL", "http://127.0.0.1:1")
    assert cli("ls").status == 125
    assert cli("--embedded", "ls").status == 0


def test_doctor_examines_the_machine_of_a_named_daemon(daemon, cli):
    said = cli("--url", daemon.url, "--api-key", KEY, "doctor", "--no-measure", "--json")
    assert said.status == 0
    report = json.loads(said.out)
    assert report["ready"] is True
    # Its backend has no other requirement; that of this process has many.
    assert [one["name"] for one in report["requirements"]] == ["programs"]
    assert cli("doctor", "--no-measure").status == 0


def test_contradictory_options_are_refused():
    with pytest.raises(InvalidRequest, match="exclude"):
        _ = State(url="http://x", embedded=True).place
    with pytest.raises(InvalidRequest, match="exclude each other"):
        _ = State(url="http://x", data_dir="/x").place


def test_a_stale_socket_of_a_killed_daemon_is_ignored(tmp_path):
    import socket

    path = str(tmp_path / "daemon.sock")
    assert not answers(path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert os.path.exists(path)
    assert not answers(path)
    with socket.socket(socket.AF_UNIX) as there:
        os.unlink(path)
        there.bind(path)
        there.listen()
        assert answers(path)


@pytest.mark.promise("P118")
def test_a_list_of_backends_that_fails_is_shown_with_the_reason_of_each(cli, tmp_path, monkeypatch):
    rules = {"SANDKASTEN_POLICY_BACKENDS": '[{"use": ["e2b", "fly"]}]'}
    for name, value in (*rules.items(), ("SANDKASTEN_BACKEND", "local")):
        monkeypatch.setenv(name, value)

    def check() -> None:
        done = cli("run", "-r", "sh", "-c", "echo ran")
        assert (done.status, done.out) == (125, "")
        assert done.err.startswith(
            "error: no backend of policy.backends[0] is available:\n"
            "  e2b: backend e2b is not enabled\n"
            "  fly: backend fly is not enabled\n"
            "hint: the operator sets backends.e2b.enabled: true"
        )
        told = json.loads(cli("create", "--json").out)
        told["details"].pop("request_id", None)
        assert told["code"] == "BACKEND_UNAVAILABLE"
        assert told["details"] == {
            "backend": "e2b",
            "rule": "policy.backends[0]",
            "tried": ["e2b: backend e2b is not enabled", "fly: backend fly is not enabled"],
        }

    check()
    with served(tmp_path / "data", backend="local", **rules):
        check()


@pytest.mark.promise("P119")
def test_the_address_of_an_engine_is_shown_to_the_operator_alone(cli, tmp_path, monkeypatch):
    socket = f"{tmp_path}/none.sock"
    engine = {"DOCKER_HOST": f"unix://{socket}"}
    for name, value in (*engine.items(), ("SANDKASTEN_BACKEND", "local")):
        monkeypatch.setenv(name, value)
    here = cli("create", "--backend", "docker")
    assert here.status == 125
    assert f"\nnote: it is at {socket}: " in here.err
    with served(tmp_path / "data", backend="local", **engine):
        there = cli("create", "--backend", "docker")
    assert there.err.startswith("error: the Docker Engine does not answer: ")
    assert "No such file or directory" in there.err
    assert "\nhint: check that dockerd runs there" in there.err
    assert socket not in there.err
