"""What a person sees of commands that a daemon carries out; one daemon for all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten import Sandbox
from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import SessionNotFound
from sandkasten_tools.tool_access import open_tools
from tests.cli.conftest import UNISOLATED
from tests.cli.terminal import Person
from tests.client.http.served import KEY, Served, served
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("daemon") / "data") as one:
        yield one


@pytest.fixture(autouse=True)
def through_it(daemon: Served, unisolated_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(daemon.data_dir))


@pytest.fixture
def box(cli) -> Iterator[str]:
    the_id = cli("create").out.strip()
    yield the_id
    cli("rm", the_id)


def _into_head(*words: str) -> tuple[int, bytes]:
    """Run a command whose reader leaves after three bytes; return its status and its stderr."""
    with subprocess.Popen(
        [*UNISOLATED, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert writer.stdout.read(3) == b"xxx"
        writer.stdout.close()
        said = writer.stderr.read()
        return writer.wait(PATIENCE_S), said


def test_a_reader_that_leaves_early_causes_no_traceback(cli, box, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 9_000_000)
    assert cli("cp", str(tmp_path / "big"), f"{box}:big").status == 0
    assert cli("files", "put", str(tmp_path / "big"), "--key", "big").status == 0
    assert _into_head("cp", f"{box}:big", "-") == (1, b"")
    assert _into_head("files", "get", "big", "-") == (1, b"")
    assert cli("files", "rm", "big").status == 0


def _until(look: Callable[[], object]) -> None:
    """Wait until `look` returns something true."""
    end = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < end, f"last seen: {seen!r}"
        time.sleep(0.05)


def _running(cli, box: str) -> list[str]:
    commands = json.loads(cli("inspect", box).out)["commands"]
    return [one["exec_id"] for one in commands if one["status"] == "running"]


@pytest.mark.parametrize(
    "command", few([["sleep", "600"], ["trap '' TERM; sleep 600 & wait; wait"]])
)
def test_sigterm_of_exec_ends_the_command_inside(cli, box, command):
    with subprocess.Popen([*UNISOLATED, "exec", box, *command], env={**os.environ}) as started:
        _until(lambda: _running(cli, box))
        started.send_signal(signal.SIGTERM)
        assert started.wait(PATIENCE_S) == 128 + signal.SIGTERM
    _until(lambda: not _running(cli, box))


def test_a_command_that_waits_for_a_busy_shell_says_so(cli, box):
    with subprocess.Popen([*UNISOLATED, "exec", box, "sleep 600"], env={**os.environ}) as busy:
        _until(lambda: _running(cli, box))
        with Person([*UNISOLATED, "exec", box, "echo turn"]) as person:
            person.wait_for("note: the shell default is busy with another command")
            person.wait_for("--shell NAME uses another shell")
            busy.send_signal(signal.SIGINT)
            person.wait_for("turn")
            assert person.status() == 0


def test_one_word_on_a_terminal_is_a_command_line_where_the_shell_is(cli, box):
    assert cli("exec", box, "cd /usr").status == 0
    with Person([*UNISOLATED, "exec", "-it", box, "pwd; cd /tmp; pwd; test -t 0 && exit 7"]) as one:
        one.wait_for("/usr")
        one.wait_for("/tmp")
        assert one.status() == 7
    with Person([*UNISOLATED, "exec", "-it", box, "pwd"]) as one:
        one.wait_for("/usr")
        assert one.status() == 0


@pytest.mark.parametrize("where", [[], ["--embedded"]])
def test_run_shows_output_as_it_comes(where):
    code = "echo first; echo problem >&2; sleep 600"
    with subprocess.Popen(
        [*UNISOLATED, *where, "run", "-r", "sh", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ},
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        try:
            seen = [started.stdout.readline(), started.stderr.readline()]
        finally:
            started.send_signal(signal.SIGTERM)
        assert seen == [b"first\n", b"problem\n"]
        assert started.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_a_run_whose_reader_leaves_is_ended(cli):
    status, said = _into_head("run", "-r", "sh", "-c", "while :; do echo xxx; done")
    assert (status, said) == (1, b"")
    _until(lambda: json.loads(cli("ls", "--json").out) == [])


def test_an_operator_sees_and_removes_the_sandboxes_of_all_tenants(cli, box, daemon, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_TENANT", "acme")
    theirs = cli("create").out.strip()
    monkeypatch.delenv("SANDKASTEN_TENANT")
    assert cli("ls", "-q").out.split() == [box]
    assert cli("ls", "-q", "--all-tenants").out.split() == [box, theirs]
    head, _, row = cli("ls", "--all-tenants").out.splitlines()
    assert (head.split()[:2], row.split()[:2]) == (["TENANT", "ID"], ["acme", theirs])
    listed = json.loads(cli("ls", "--all-tenants", "--json").out)
    assert [(one["tenant"], one["memory_bytes"] is None) for one in listed] == [
        ("default", listed[0]["memory_bytes"] is None),
        ("acme", listed[0]["memory_bytes"] is None),
    ]
    key = cli("key", "create", "--tenant", "acme").out.strip()
    refused = cli("--url", daemon.url, "--api-key", key, "ls", "--all-tenants")
    assert "does not have the scope admin" in refused.err
    assert cli("rm", "--all").out.split() == [box]
    assert cli("rm", "--all-tenants").out.split() == [theirs]
    assert cli("ls", "-q", "--all-tenants").out == ""


def test_the_hint_for_a_missing_archive_is_about_the_file(cli, tmp_path):
    missing = cli("image", "import", str(tmp_path / "nope.tar"))
    assert missing.err.splitlines()[-1] == "hint: check that the file exists and is readable"


def test_validation_by_a_daemon_says_whose_files_it_used(cli, daemon, tmp_path):
    flow = "id: flow\nsteps: [{id: one, agent: nobody}]\n"
    (tmp_path / "flow.yaml").write_text(flow)
    for words in (
        ("workflow", "validate", str(tmp_path / "flow.yaml")),
        ("agent", "validate", "x"),
    ):
        said = cli(*words)
        assert f"note: checked by the daemon at unix://{daemon.socket}, with its" in said.err
        assert "note:" not in cli("--embedded", *words).err


def test_an_orderly_stop_writes_no_traceback(tmp_path):
    with served(tmp_path / "data", SANDKASTEN_DRAIN_SECONDS="0.1") as other:
        the_id = _asked(other, "create").strip()
        with subprocess.Popen(
            [*UNISOLATED, "--url", f"unix://{other.socket}", "exec", the_id, "echo on; sleep 600"],
            stdout=subprocess.PIPE,
        ) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"on\n"
            other.process.terminate()
            other.process.wait(PATIENCE_S)
            following.kill()
    said = "".join(other.said)
    assert '"event": "daemon.stopped"' in said
    assert "Traceback" not in said


def _asked(daemon: Served, *words: str) -> str:
    command = [*UNISOLATED, "--url", f"unix://{daemon.socket}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_settings_of_the_daemon_are_shown_on_request(cli, daemon, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_DEFAULT_IMAGE", "mine")
    own = cli("config", "show")
    assert f"note: the daemon at unix://{daemon.socket} may have others" in own.err
    assert json.loads(cli("config", "show", "--json").out)["default_image"] == "mine"
    theirs = json.loads(cli("config", "show", "--daemon", "--origin", "--json").out)
    assert theirs["default_image"] == {"value": None, "origin": "default"}
    assert theirs["data_dir"]["value"] == str(daemon.data_dir)
    assert KEY not in json.dumps(theirs)
    refused = cli("--embedded", "config", "show", "--daemon")
    assert "--daemon requires a daemon" in refused.err
    key = cli("key", "create", "--tenant", "acme").out.strip()
    refused = cli("--url", daemon.url, "--api-key", key, "config", "show", "--daemon")
    assert "does not have the scope admin" in refused.err


def test_an_error_of_a_daemon_that_the_program_did_not_name_names_it(daemon):
    the_id = "sbx_0000000000000000"
    with pytest.raises(SessionNotFound) as found:
        Sandbox.attach(the_id, data_dir=str(daemon.data_dir))
    assert str(found.value).endswith(f"(answered by the daemon at unix://{daemon.socket})")
    with pytest.raises(SessionNotFound) as named:
        Sandbox.attach(the_id, url=f"unix://{daemon.socket}")
    assert "daemon at" not in str(named.value)


def test_tools_of_a_process_beside_a_daemon_use_its_stored_files(cli, daemon):
    async def use() -> list[Mapping[str, Any]]:
        beside = ServerAddress(str(daemon.data_dir), "unisolated", embedded=True)
        async with open_tools(beside, mode="code") as tools:
            return [
                await tools.call("sandbox_fs_write", {"path": "a", "text": "content"}),
                await tools.call("sandbox_publish_file", {"source": "a", "file_key": "k"}),
                await tools.call("sandbox_stage_file", {"file_key": "k", "destination": "b"}),
            ]

    assert [one.get("code") for one in asyncio.run(use())] == [None, None, None]
    assert cli("files", "get", "k").out == "content"
    assert cli("files", "rm", "k").status == 0
