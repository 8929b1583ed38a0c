"""Commands that start without the full command line do exactly what it does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from sandkasten.cli import quick_commands, quick_exec, quick_list
from sandkasten.cli.command_table import build
from sandkasten.cli.plain_options import COMMANDS, GLOBAL, MANY, ONE, SWITCH, parse
from sandkasten.client.plain import daemon_socket
from sandkasten.client.plain.plain_http import Incomplete, PlainAnswer
from sandkasten.client.server.daemon_or_embedded import find_server, place_of
from sandkasten.errors import SandkastenError
from tests.cli.conftest import COMMAND, Spoken
from tests.client.http.served import Served, served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def kind_of(parameter) -> str:
    if parameter.is_flag:
        return SWITCH
    return MANY if parameter.multiple else ONE


def declared(command) -> dict[str, tuple[str, str]]:
    return {
        name: (one.name, kind_of(one))
        for one in command.params
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("-")
    }


@pytest.mark.promise("P93")
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_the_options_are_those_of_the_full_parser(name):
    group: Any = typer.main.get_command(build(name or None))
    command = group if not name else group.commands[name]
    ours = dict(COMMANDS[name] if name else GLOBAL)
    theirs = declared(command)
    assert ours == {option: theirs[option] for option in ours}


@pytest.mark.parametrize(
    "line",
    [
        ("version",),
        ("version", "--json"),
        ("--data-dir", "d", "--embedded", "version"),
        ("--data-dir=d=e", "--url=", "version"),
        ("ls", "-q", "--all"),
        (
            "exec",
            "-e",
            "A=1",
            "-w",
            "/",
            "--timeout",
            "9",
            "--shell",
            "s",
            "--json",
            "i",
            "-c",
            "--",
        ),
        ("run", "-c", "print(1)"),
        ("run", "-c", "-x", "a", "b"),
        ("run", "-r", "sh", "-e", "A=1", "--env=B=2=3", "-e", "", "-c", "x"),
        ("run", "--timeout", "90", "file.py", "a", "--json", "--", "-c"),
        ("run", "--json", "--stdin", "-", "a"),
        ("run", "-r", "sh", "-r", "node", "--image", "python", "-f", "a:b", "-f", "c", "x"),
        ("--backend", "local", "run", "--backend", "oci", "-a", "*", "-o", "out", "x"),
        ("--api-key", "k", "--url", "http://x", "run"),
    ],
)
def test_a_line_means_what_it_means_to_the_full_parser(line):
    found = parse(line)
    assert found is not None
    group: Any = typer.main.get_command(build(found.command))
    with group.make_context("sandkasten", list(line)) as context:
        before = {**context.params}
        rest = [*context._protected_args, *context.args]
        command = group.commands[rest[0]]
        with command.make_context(rest[0], rest[1:], parent=context) as inside:
            after = {**inside.params}
    assert {**found.before, "version": False} == {
        name: value for name, value in before.items() if value is not None and value is not False
    } | {"version": False}
    words = after.pop("words", None) or []
    if found.command == "exec":
        words = [after.pop("id"), *after.pop("command")]
    timeout: Any = found.options.get("timeout")
    ours = {**found.options, **({"timeout": float(timeout)} if timeout else {})}
    set_to = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in after.items()
        if value not in (None, False, [], ()) and (name, value) != ("out", ".")
    }
    assert (found.command, ours, list(found.words)) == (rest[0], set_to, list(words))


@pytest.mark.parametrize(
    "line",
    [
        (),
        ("--help",),
        ("run", "--help"),
        ("run", "-h"),
        ("run", "-cprint(1)"),
        ("run", "-c"),
        ("run", "--json=1", "-c", "x"),
        ("run", "--jso", "-c", "x"),
        ("run", "-c", "x", "--network", "full"),
        ("run", "--network", "full", "-c", "x"),
        ("run", "--", "x"),
        ("--", "run"),
        ("--no-such", "run"),
        ("ls", "--no-such"),
        ("ls", "--json"),
        ("exec", "-d", "i", "x"),
        ("exec", "-u", "root", "i", "x"),
        ("rn",),
    ],
)
def test_what_is_not_certain_is_left_to_the_full_parser(line):
    found = parse(line)
    assert found is None or "--network" in found.words


def test_version_imports_neither_parser_nor_engine():
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys; from sandkasten.cli.main import main\n"
            "try: main(['version'])\n"
            "except SystemExit: print(*sorted(sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"typer", "asyncio", "typing", "json", "dataclasses"} & {*done.stdout.split()}


# ---- through a daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("quick") / "data") as one:
        yield one


def alike(spoken: Spoken) -> Spoken:
    """Return the output without the values that differ each time."""
    varies = r'("(?:duration_ms|exec_id|cpu_ms|peak_memory_bytes|io_read_bytes)": )("[^"]*"|[0-9]+)'
    out = re.sub(varies, r"\1-", spoken.out)
    # Lines of two streams come in the order in which the runner read them.
    out = re.sub(r'(?<="output": ")[^"]*', lambda told: "".join(sorted(told[0])), out)
    return replace(spoken, out=out)


@pytest.fixture
def both(
    daemon: Served, cli: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Spoken]:
    """Run a command line quickly and through the full command line, and compare."""

    def run(*line: str, quick: bool = True) -> Spoken:
        statuses: list[int | None] = []
        answer = quick_commands.answer

        def noted(words):
            statuses.append(answer(words))
            return statuses[-1]

        with monkeypatch.context() as patch:
            patch.setattr(quick_commands, "answer", noted)
            ours = cli(*line)
        assert (statuses[-1:] != [None]) is quick, f"{line} took the other way"
        with monkeypatch.context() as patch:
            patch.setattr(quick_commands, "answer", lambda words: None)
            assert alike(ours) == alike(cli(*line))
        return ours

    return run


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("-r", "sh", "-c", "echo out; echo err >&2"), 0),
        (("-r", "sh", "-c", r"printf 'a\377b\342\200\250\302'; printf '\360\237\230\200' >&2"), 0),
        (("-r", "sh", "-c", 'echo "$1" "$A"; exit 7', "-e", "A=1"), 7),
        (("-r", "sh", "-e", "A=b=c", "-e", "B=é", "-c", 'echo "$1" "$2" "$A"', "x", "é y"), 0),
        (("-r", "sh", "-c", "kill -9 $$"), 137),
        (("-r", "sh", "-c", "no-such-program"), 127),
        (("-r", "sh", "--timeout", "1", "-c", "echo begun; sleep 60"), 124),
        (("-r", "no-such", "-c", "x"), 125),
        (("-i", "no-such", "-c", "x"), 125),
        (("-c", "print(1)", "--image", "x"), 125),
        (("-c", "print(1)", "x", "--image", "x"), 2),
        (("-e", "É=1", "-c", "x"), 125),
        (("--timeout", "0", "-c", "x"), 125),
        (("--isolation", "most", "-c", "x"), 125),
        (("--hostname", "-", "-c", "x"), 125),
        (("-e", "A=\x00", "-c", "x"), 125),
    ],
)
def test_a_run_through_a_daemon_is_the_same(both, daemon, words, status):
    done = both("--url", f"unix://{daemon.socket}", "run", *words, quick=status != 2)
    assert done.status == status, done


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("-r", "sh", "-c", "echo out é; echo err >&2"), 0),
        (("-r", "sh", "-c", r"printf 'a\377b\342\200\250\302'; exit 3"), 3),
        (("-r", "sh", "-c", "kill -9 $$"), 137),
        (("-r", "sh", "--timeout", "1", "-c", "echo begun; sleep 60"), 124),
        (("-r", "sh", "-c", "yes | head -c 300000"), 0),
        (("-r", "no-such", "-c", "x"), 125),
        (("-i", "no-such", "-c", "x"), 125),
    ],
)
def test_a_run_with_a_document_is_the_same(both, daemon, words, status):
    done = both("--url", f"unix://{daemon.socket}", "run", "--json", *words)
    assert (done.status, done.err) == (status, "")


@pytest.mark.promise("P93")
def test_a_list_is_the_same(both, cli, daemon, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 2e9)
    url = ("--url", f"unix://{daemon.socket}")
    assert both(*url, "ls").out.startswith("ID ")
    made = [cli(*url, "create", "--label", "a=b", "--label", "c=é\u202e").out.strip()]
    made.append(cli(*url, "create", "--workspace", "kept").out.strip())
    try:
        assert both(*url, "ls").out.count("\n") == 3
        assert both(*url, "ls", "-q").out.split() == made
        cli(*url, "pause", made[0])
        assert both(*url, "ls", "--all").out.count("\n") == 3
        both(*url, "ls", "--json", quick=False)
        both(*url, "ls", "--all-tenants", quick=False)
        both(*url, "ls", "word", quick=False)
    finally:
        cli(*url, "rm", *made)


def test_the_commands_whose_first_word_is_a_sandbox_are_those_of_the_full_parser():
    group: Any = typer.main.get_command(build())
    of_sandboxes = {
        name
        for name, command in group.commands.items()
        if (first := next((p for p in command.params if p.param_type_name == "argument"), None))
        if first.name in ("id", "ids")
    }
    assert of_sandboxes == quick_list.OF_SANDBOXES


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "fish is-args"])
def test_completed_ids_are_those_of_the_full_command(both, cli, daemon, monkeypatch, shell):
    name, _, action = shell.partition(" ")
    monkeypatch.setenv("SANDKASTEN_URL", f"unix://{daemon.socket}")
    made = cli("create").out.strip()
    monkeypatch.setenv("_SANDKASTEN_COMPLETE", f"complete_{name}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", action or "get-args")
    try:
        for typed, quick in (
            ("exec sbx_", True),
            ("rm ", True),
            ("stats sbx_none", True),
            (f"exec {made} l", False),
            ("cr", False),
            ("rm 'sbx_", False),
            ("exec -", False),
        ):
            # Typer's script for bash joins the words with IFS, which it sets to a newline.
            monkeypatch.setenv("COMP_WORDS", f"sandkasten {typed}".replace(" ", "\n"))
            monkeypatch.setenv("COMP_CWORD", str(typed.count(" ") + 1))
            monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"sandkasten {typed}")
            offered = both(quick=quick).out
            if (shell, typed) == ("bash", "rm "):
                assert offered == f"{made}\n"
    finally:
        for variable in ("_SANDKASTEN_COMPLETE", "_TYPER_COMPLETE_FISH_ACTION"):
            monkeypatch.delenv(variable)
        cli("rm", made)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[{}]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b'HTTP/1.1 401 No\r\nContent-Length: 39\r\n\r\n{"code":"UNAUTHORIZED","message":"key"}',
    ],
)
def test_a_list_that_is_not_one_is_left_to_the_full_command(said, capfd):
    here, there = socket.socketpair()
    with here, there:
        there.sendall(said)
        there.shutdown(socket.SHUT_WR)
        found = daemon_socket.DaemonSocket(here, "unix:///x", None, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(daemon_socket, "find", lambda *_, **__: found)
            assert quick_commands.answer(["ls"]) is None
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def box(daemon: Served) -> Iterator[str]:
    """Yield the id of a sandbox of the daemon."""
    command = [*COMMAND, "--url", f"unix://{daemon.socket}"]
    made = subprocess.run([*command, "create"], capture_output=True, text=True, check=True)
    yield made.stdout.strip()
    subprocess.run([*command, "rm", made.stdout.strip()], capture_output=True, check=True)


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("ID", "echo out; echo err >&2"), 0),
        (("ID", r"printf 'a\377b\342\200\250\302'; printf '\360\237\230\200' >&2"), 0),
        (("ID", "sh", "-c", "echo $0 $1 $A; pwd; exit 7", "a", "--json"), 7),
        (("-e", "A=b=c", "-e", "B=é", "-w", "/tmp", "ID", "--", "sh", "-c", "echo $A $B; pwd"), 0),
        (("--shell", "other", "ID", "cd /tmp; pwd; X=1"), 0),
        (("--shell", "other", "ID", "pwd; echo $X"), 0),
        (("--shell", "no name", "ID", "x"), 125),
        (("--cwd", "/nonexistent", "ID", "pwd", "-P"), 125),
        (("ID", "exit 3"), 3),
        (("ID", "sh", "-c", "kill -9 $$"), 137),
        (("--timeout", "1", "ID", "sh", "-c", "echo begun; sleep 60"), 124),
        (("ID", "no-such", "program"), 127),
        (("ID", "/etc", "x"), 126),
        (("ID", "", "x"), 125),
        (("ID", "echo", "\x00"), 125),
        (("ID", "yes | head -c 300000"), 0),
        (("--json", "ID", "echo é; echo err >&2; exit_code() { return 5; }; exit_code"), 5),
        (("--json", "ID", "printf", r"\377"), 0),
        (("--json", "ID", "no-such", "program"), 127),
        (("-e", "É=1", "ID", "echo", "x"), 125),
    ],
)
def test_a_command_through_a_daemon_is_the_same(both, daemon, box, words, status):
    line = [box if word == "ID" else word for word in words]
    done = both("--url", f"unix://{daemon.socket}", "exec", *line)
    assert done.status == status, done


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("ID",), 2),
        (("ID", "--"), 2),
        (("--timeout", "1m", "ID", "echo", "x"), 0),
        (("--timeout", "0", "ID", "echo", "x"), 0),
        (("-e", "A", "ID", "echo", "x"), 2),
        (("sbx_0000000000000000", "echo", "x"), 125),
        (("sbx_", "echo", "x"), 0),
        (("-i", "ID", "cat"), 0),
    ],
)
def test_an_unusual_command_is_left_to_the_full_command(both, daemon, box, words, status):
    line = [box if word == "ID" else word for word in words]
    assert both("--url", f"unix://{daemon.socket}", "exec", *line, quick=False).status == status


@pytest.mark.promise("P93")
@pytest.mark.parametrize("where", ["start", "answer", "output", "events"])
def test_a_command_whose_connection_breaks_runs_once(cli, daemon, box, monkeypatch, where):
    line = ("--url", f"unix://{daemon.socket}", "exec", box)
    counted = f"echo a; sleep 0.2; echo b; echo x >> {where}; wc -l < {where}"
    ask, pieces = quick_exec._Execution._ask, PlainAnswer.pieces

    def lost(self, method, verb, body=None):
        if where == "answer":
            ask(self, method, verb, body)
        raise OSError

    def broken(self):
        if b"event-stream" not in self.headers.get(b"content-type", b""):
            yield from pieces(self)
            return
        if where == "events":
            yield next(pieces(self))
        raise Incomplete

    if where in ("start", "answer"):
        monkeypatch.setattr(quick_exec._Execution, "_ask", lost)
    else:
        monkeypatch.setattr(PlainAnswer, "pieces", broken)
    assert cli(*line, counted) == Spoken(0, "a\nb\n1\n", "")


@pytest.mark.real_start
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command(daemon, box, number):
    command = [*COMMAND, "--url", f"unix://{daemon.socket}", "exec", box]
    script = "trap 'echo got; exit 9' INT TERM; echo begun; while :; do sleep 0.1; done"
    running = subprocess.Popen(
        [*command, "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"begun\n"
    running.send_signal(number)
    out, err = running.communicate(timeout=PATIENCE_S)
    expected = (9, b"got\n") if number == signal.SIGINT else (128 + number, b"")
    assert (running.returncode, out, err) == (*expected, b"")
    listed = [*COMMAND, "--url", f"unix://{daemon.socket}", "inspect", box]
    shown = subprocess.run(listed, capture_output=True, check=True).stdout
    assert b'"status": "running",\n      "exit_code"' not in shown


@pytest.mark.real_start
def test_a_reader_that_leaves_ends_the_command(daemon, box):
    command = [*COMMAND, "--url", f"unix://{daemon.socket}", "exec", box, "yes", "y"]
    running = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert running.stdout is not None
    assert running.stdout.read(4) == b"y\ny\n"
    running.stdout.close()
    assert running.wait(PATIENCE_S) == 1


def test_a_file_runs_the_same(both, daemon, tmp_path):
    (tmp_path / "a.sh").write_text('echo "$1" $0')
    (tmp_path / "b").write_bytes(b"\xff")
    url = ("--url", f"unix://{daemon.socket}")
    assert both(*url, "run", str(tmp_path / "a.sh"), "x").out.startswith("x ")
    assert both(*url, "run", str(tmp_path / "b")).status == 125
    assert both(*url, "run", str(tmp_path / "none")).status == 125


def test_a_daemon_of_the_data_directory_is_found_without_settings(both, daemon, monkeypatch):
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(daemon.data_dir))
    assert both("run", "-r", "sh", "-c", "echo $((6*7))").out == "42\n"
    assert both("--data-dir", str(daemon.data_dir), "run", "-r", "sh", "-c", "exit 3").status == 3
    # The error names the daemon, which the user did not.
    assert both("run", "-i", "no-such", "-c", "x").status == 125


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\nevent: chunk\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\nevent: chunk\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\nevent: done\ndata: {}\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\nevent: done\ndata: not JSON\n\n",
        b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\nnobody",
        b'HTTP/1.1 401 No\r\nContent-Length: 39\r\n\r\n{"code":"UNAUTHORIZED","message":"key"}',
    ],
)
@pytest.mark.parametrize("words", [("-c", "x"), ("--json", "-c", "x")])
def test_an_answer_that_breaks_off_is_the_same_error(both, tmp_path, said, words):
    path = str(tmp_path / "broken.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve() -> None:
            for _ in range(2):
                there, _ = listening.accept()
                with there:
                    there.recv(1 << 16)
                    there.sendall(said)
                    there.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        done = both("--url", f"unix://{path}", "run", *words)
        assert done.status == 125
        assert done.err.startswith("error: ") or (len(words) == 3 and done.out.startswith("{"))
        thread.join(PATIENCE_S)


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("-r", "sh", "-e", "A=1", "-c", 'echo "$A" "$1"; exit 7', "x"), 7),
        (("-r", "sh", "--timeout", "9", "IN:script"), 0),
        (("-f", "IN:script", "-a", "*.txt", "-o", "OUT", "-r", "sh", "-c", "cp script a.txt"), 0),
        (("--image", "no-such", "--json", "-c", "x"), 125),
        (("-r", "sh", "--mount", "none", "-c", "x"), 125),
        (("IN:none",), 125),
        ((), 2),
    ],
)
def test_a_run_without_a_daemon_is_the_same(both, tmp_path, words, status):
    (tmp_path / "script").write_text("echo ran")
    places = {"OUT": str(tmp_path / "out")}
    line = [places.get(word, word.replace("IN:", f"{tmp_path}/")) for word in words]
    assert both("run", *line).status == status


@pytest.mark.real_start
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_and_is_the_status(daemon, number):
    command = [*COMMAND, "--url", f"unix://{daemon.socket}", "run", "-r", "sh"]
    running = subprocess.Popen(
        [*command, "-c", "echo begun; sleep 600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"begun\n"
    running.send_signal(number)
    _, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, err) == (128 + number, b"")


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SANDKASTEN_URL": "embedded"},
        {"SANDKASTEN_URL": "http://127.0.0.1:1"},
        {"SANDKASTEN_URL": "unix://SOCKET"},
        {"SANDKASTEN_DATA_DIR": "DATA"},
        {"SANDKASTEN_DATA_DIR": "DATA", "SANDKASTEN_TENANT": "other"},
        {"SANDKASTEN_DATA_DIR": "DATA", "SANDKASTEN_SOCKET": "/nonexistent"},
        {"SANDKASTEN_DATA_DIR": "DATA", "SANDKASTEN_LISTEN": "not an address"},
        {"SANDKASTEN_DATA_DIR": "DATA", "SANDKASTEN_CONFIG": "/nonexistent"},
        {"SANDKASTEN_DATA_DIR": "DATA", "SANDBOX_SESSION_MAX_LIFETIME": "never"},
        {"SANDKASTEN_DATA_DIR": "/nonexistent"},
    ],
)
@pytest.mark.parametrize("options", [{}, {"data_dir": "DATA"}, {"url": "unix://SOCKET"}])
def test_the_daemon_found_is_the_one_that_the_settings_name(
    daemon, monkeypatch, tmp_path, environ, options
):
    names = {"DATA": str(daemon.data_dir), "unix://SOCKET": f"unix://{daemon.socket}"}
    for name in [one for one in os.environ if one.startswith("SANDKASTEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environ.items():
        monkeypatch.setenv(name, names.get(value, value))
    options = {name: names.get(value, value) for name, value in options.items()}
    found = daemon_socket.find(os.environ, **options)
    try:
        place = find_server(place_of(options.get("data_dir"), None, options.get("url")))
    except SandkastenError:
        assert found is None
        return
    if found is None:
        return
    if found.connection is not None:
        found.connection.close()
    assert (found.url, found.api_key, found.tenant) == (place.url, place.api_key, place.tenant)


def test_a_settings_file_is_left_to_the_settings(monkeypatch, tmp_path):
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    monkeypatch.chdir(tmp_path)
    assert daemon_socket.find(os.environ) is not None
    (tmp_path / "sandkasten.yaml").write_text("socket: /nonexistent\n")
    assert daemon_socket.find(os.environ) is None
