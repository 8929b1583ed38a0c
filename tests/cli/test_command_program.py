"""The program `sandkasten` does exactly what the command line in Python does, or becomes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from sandkasten import __version__
from sandkasten.client.server.daemon_or_embedded import find_server, place_of
from sandkasten.errors import SandkastenError
from sandkasten.model.language_runtimes import RUNTIME_OF_SUFFIX
from sandkasten_server.cli.command_table import build
from tests.cli.conftest import COMMAND
from tests.client.http.served import Served, served
from tests.patience import PATIENCE_S
from tests.unisolated.composition import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

PROGRAM = REPOSITORY / "src" / "sandkasten_runtime" / "_bin" / "sandkasten"
SOURCES = REPOSITORY / "runner" / "src" / "cli"


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    out: bytes
    err: bytes


@dataclass(frozen=True, slots=True)
class Installed:
    """The program, beside a script that notes its arguments and may become the command line."""

    path: Path
    notes: Path

    def run(self, *words: str, **options: Any) -> Ended:
        self.notes.write_text("")
        return run([str(self.path), *words], **options)

    @property
    def others(self) -> list[str]:
        """The lines that became the other command line."""
        return self.notes.read_text().splitlines()


def run(words: Sequence[str], **options: Any) -> Ended:
    options = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE_S, **options}
    done = subprocess.run(words, capture_output=True, check=False, **options)
    return Ended(done.returncode, done.stdout, done.stderr)


def install(folder: Path, then: str) -> Installed:
    shutil.copy(PROGRAM, folder / "sandkasten")
    notes = folder / "notes"
    notes.touch()
    script = folder / "sandkasten-cli"
    script.write_text(f"#!/bin/sh\nprintf '%s|' \"$@\" >>{notes}; echo >>{notes}\n{then}\n")
    script.chmod(0o755)
    return Installed(folder / "sandkasten", notes)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return the program beside the command line in Python."""
    command = shlex.join([*COMMAND])
    return install(tmp_path_factory.mktemp("program"), f'exec {command} "$@"')


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return the program beside a script that only says that it was called."""
    return install(tmp_path_factory.mktemp("alone"), "echo other; exit 77")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "data") as one:
        yield one


@pytest.fixture
def url(daemon: Served) -> tuple[str, str]:
    return ("--url", f"unix://{daemon.socket}")


@pytest.fixture(scope="module")
def box(daemon: Served) -> Iterator[str]:
    """Yield the id of a sandbox of the daemon."""
    command = [*COMMAND, "--url", f"unix://{daemon.socket}"]
    created = subprocess.run([*command, "create"], capture_output=True, text=True, check=True)
    yield created.stdout.strip()
    subprocess.run([*command, "rm", created.stdout.strip()], capture_output=True, check=True)


@pytest.fixture
def both(program: Installed) -> Callable[..., Ended]:
    """Run a command line through both, and compare. `others` is how often Python was needed."""

    def compare(*line: str, others: int = 0, **options: Any) -> Ended:
        ours = program.run(*line, **options)
        assert len(program.others) == others, f"{line} took the other way"
        assert ours == run([*COMMAND, *line], **options)
        return ours

    return compare


# ---- the command line


def kind_of(parameter: Any) -> str:
    if parameter.is_flag:
        return "Switch"
    return "Many" if parameter.multiple else "One"


def declared(command: Any) -> dict[str, tuple[str, str]]:
    return {
        name: (parameter.name.rstrip("_"), kind_of(parameter))
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


def tables() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the options that the program knows, by command; those before it under ""."""
    source = (SOURCES / "line.rs").read_text().partition("const GLOBAL")[2].partition("\n];\n")
    before, after = source[0], source[2].partition("\n];\n")[0]
    option = re.compile(r'\(\s*"(-[^"]+)",\s*"([^"]+)",\s*(\w+)\s*\)')
    parts = re.split(r'\(\s*"([a-z]+)",\s*&\[', after)
    texts = {"": before, **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return {name: {o: (f, k) for o, f, k in option.findall(t)} for name, t in texts.items()}


@pytest.mark.promise("P93")
def test_the_options_are_those_of_the_full_parser():
    options = tables()
    assert set(options) == {"", "version", "ls", "exec", "run"}
    assert len(options["run"]) == 9
    for name, ours in options.items():
        group: Any = typer.main.get_command(build(name or None))
        theirs = declared(group if not name else group.commands[name])
        assert ours == {option: theirs.get(option) for option in ours}, name


def test_the_suffixes_are_those_of_the_model():
    source = (SOURCES / "run.rs").read_text().partition("RUNTIME_OF_SUFFIX")[2].partition("];\n")[0]
    runtimes = {f".{suffix}": name for suffix, name in re.findall(r'\("(\w+)", "(\w+)"\)', source)}
    assert runtimes == dict(RUNTIME_OF_SUFFIX)


@pytest.mark.parametrize(
    "line",
    [
        (),
        ("--help",),
        ("run", "--help"),
        ("run", "-h"),
        ("run", "-cprint(1)"),
        ("run", "-c"),
        ("run", "--json", "-c", "x"),
        ("run", "--jso", "-c", "x"),
        ("run", "-c", "x", "--network", "full"),
        ("run", "--network", "full", "-c", "x"),
        ("run", "--file", "x", "-c", "x"),
        ("run", "--stdin", "-c", "x"),
        ("run", "--timeout", "1m", "-c", "x"),
        ("run", "-e", "A", "-c", "x"),
        ("run", "-i", "a:b", "-c", "x"),
        ("run", "/nonexistent"),
        ("run", "-"),
        ("run", "--", "x"),
        ("--", "run"),
        ("--embedded", "run", "-c", "x"),
        ("--no-such", "run"),
        ("ls", "--no-such"),
        ("ls", "--json"),
        ("ls", "--all-tenants"),
        ("ls", "word"),
        ("--backend", "local", "ls"),
        ("version", "--json"),
        ("version", "word"),
        ("exec", "-d", "ID", "x", "y"),
        ("exec", "-i", "ID", "x", "y"),
        ("exec", "-u", "root", "ID", "x", "y"),
        ("exec", "--json", "ID", "x", "y"),
        ("exec", "--timeout", "0", "ID", "x", "y"),
        ("exec", "sbx_", "x", "y"),
        ("exec", "ID"),
        ("exec", "ID", "--"),
        ("exec", "ID", "-x"),
        ("rm", "ID"),
        ("rn",),
        ("run", "-c", "\udcff"),
    ],
)
def test_a_line_that_is_not_ordinary_is_left_to_python_unchanged(alone, url, box, line):
    line = tuple(box if word == "ID" else word for word in line)
    if not line or not line[0].startswith("--"):
        line = (*url, *line)
    assert alone.run(*line) == Ended(77, b"other\n", b"")
    assert alone.notes.read_bytes() == b"".join(os.fsencode(word) + b"|" for word in line) + b"\n"


@pytest.mark.parametrize("name", ["COMP_WORDS", "stdin", "url", "settings"])
def test_input_completion_and_other_daemons_are_left_to_python(
    alone, daemon, url, box, name, monkeypatch, tmp_path
):
    line, options = [*url, "exec", box, "cat", "-"], {}
    if name == "COMP_WORDS":
        monkeypatch.setenv("_SANDKASTEN_COMPLETE", "complete_bash")
    elif name == "stdin":
        options = {"stdin": None, "input": b"in"}
    elif name == "url":
        line = ["--url", daemon.url, "exec", box, "cat", "-"]
    else:
        monkeypatch.delenv("SANDKASTEN_BACKEND")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sandkasten.yaml").write_text("socket: /nonexistent\n")
        line = ["--data-dir", str(daemon.data_dir), "exec", box, "cat", "-"]
    assert alone.run(*line, **options).status == 77


def test_the_version_is_that_of_the_packages(alone):
    for line in (("version",), ("--version",), ("--url", "x", "version")):
        assert alone.run(*line) == Ended(0, f"sandkasten {__version__}\n".encode(), b"")


@pytest.mark.real_start
def test_without_the_server_python_says_what_to_install(tmp_path):
    program = shutil.copy(PROGRAM, tmp_path / "sandkasten")
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    code = "from sandkasten.command_line import main; main()"
    assert run([program, "version"]) == Ended(0, f"-P|-c|{code}|version|".encode(), b"")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = shutil.copy(PROGRAM, elsewhere / "sandkasten")
    error = (
        b"error: the command line is not installed\n"
        b"hint: pip install 'sandkasten-runtime[server]'\n"
    )
    # The interpreter of PATH, or of the current directory, may be another user's.
    for path in (str(tmp_path), "", ":/usr/bin"):
        assert run([program, "ls"], env={"PATH": path}, cwd=tmp_path) == Ended(125, b"", error)


def test_a_variable_of_another_command_is_not_passed_on(program, url):
    env = {**os.environ, "_SANDKASTEN_BEGUN": "0"}
    done = program.run(*url, "run", "--json", "-r", "sh", "-c", "exit 3", env=env)
    assert (done.status, len(program.others)) == (3, 1)


# ---- run


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status", "others"),
    [
        (("-r", "sh", "-c", "echo out; echo err >&2"), 0, 0),
        (
            ("-r", "sh", "-c", r"printf 'a\377b\342\200\250\302'; printf '\360\237\230\200' >&2"),
            0,
            0,
        ),
        (("-r", "sh", "-e", "A=b=c", "-e", "B=é", "-c", 'echo "$1" "$2" $A', "x", "é y"), 0, 0),
        (("-r", "sh", "-c", r"printf '\033[2J\000x'"), 0, 0),
        (("-r", "sh", "-c", "exit 7"), 7, 0),
        (("-r", "sh", "-c", "no-such-program"), 127, 0),
        (("-r", "sh", "-c", "yes | head -c 300000"), 0, 0),
        (("-r", "sh", "-c", "kill -9 $$"), 137, 1),
        (("-r", "sh", "--timeout", "1", "-c", "echo begun; sleep 60"), 124, 1),
        (("-r", "no-such", "-c", "x"), 125, 1),
        (("-r", "no\x1b[2Jsuch\u202e", "-c", "x"), 125, 1),
        (("-i", "no-such", "-c", "x"), 125, 1),
        (("-e", "É=1", "-c", "x"), 125, 1),
        (("--timeout", "0", "-c", "x"), 125, 1),
    ],
)
def test_a_run_is_the_same(both, url, words, status, others):
    assert both(*url, "run", *words, others=others).status == status


def test_a_file_runs_the_same(both, url, tmp_path):
    (tmp_path / "a.sh").write_text('echo "$1" é')
    (tmp_path / "b").write_bytes(b"\xff")
    assert both(*url, "run", str(tmp_path / "a.sh"), "x").out == "x é\n".encode()
    both(*url, "run", str(tmp_path / "b"), others=1)


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\nevent: chunk\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\nevent: chunk\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\nevent: done\ndata: {}\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\nevent: done\ndata: not JSON\n\n",
        b'HTTP/1.1 200 OK\r\n\r\nevent: error\ndata: {"code":"BUSY","message":"\\u001b[2J"}\n\n',
        b'HTTP/1.1 200 OK\r\n\r\nevent: chunk\ndata: {"seq":1,"stream":"stdout","text":"x",'
        b'"gap_bytes":3}\n\n',
        b"HTTP/1.1 502 Bad\r\nContent-Length: 6\r\n\r\nnobody",
        b'HTTP/1.1 401 No\r\nContent-Length: 39\r\n\r\n{"code":"UNAUTHORIZED","message":"key"}',
        b'HTTP/1.1 401 No\r\n\r\n{"code":"BUSY","message":"\xc3\xa9\xe2\x80\xae"}',
    ],
)
def test_a_response_that_breaks_off_is_the_same_error(both, tmp_path, sent):
    path = str(tmp_path / "broken.sock")
    with answered(path, sent):
        done = both("--url", f"unix://{path}", "run", "-c", "x", others=1)
        assert done.status == 125
        assert b"error: " in done.err


@contextmanager
def answered(path: str, *sent: bytes) -> Iterator[None]:
    """Listen at a path and answer every connection with the next of these, and then the last."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve() -> None:
            left = list(sent)
            while True:
                try:
                    there, _ = listening.accept()
                except OSError:
                    return
                with there:
                    there.recv(1 << 16)
                    there.sendall(left.pop(0) if len(left) > 1 else left[0])
                    there.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


@pytest.mark.real_start
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_and_is_the_status(program, url, number):
    with begun(program, *url, "run", "-r", "sh", "-c", "echo begun; sleep 600") as run:
        run.send_signal(number)
        _, err = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, err, program.others) == (128 + number, b"", [])


@contextmanager
def begun(program: Installed, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command that prints `begun`, and wait for that."""
    program.notes.write_text("")
    command = [str(program.path), *words]
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams, stderr=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"begun\n"
            yield running
        finally:
            running.kill()


# ---- ls


@pytest.mark.promise("P93")
def test_a_list_is_the_same(both, cli, url):
    assert listed(both, url).out.startswith(b"ID ")
    # Two labels in an order that is not that of their names.
    ids = [cli(*url, "create", "--label", "z=b", "--label", "c=\x1b[2J").out.strip()]
    try:
        listed(both, url, others=1)
        assert ids[0] in listed(both, url, "-q").out.decode().split()
        cli(*url, "rm", *ids)
        ids = [cli(*url, "create", "--label", "z=b", "--label", "c=d").out.strip()]
        ids.append(cli(*url, "create", "--workspace", "kept").out.strip())
        listed(both, url)
        cli(*url, "pause", ids[0])
        assert listed(both, url, "--all").out.count(b"\n") >= 3
    finally:
        cli(*url, "rm", *ids)


def listed(both: Any, url: Any, *words: str, others: int = 0) -> Ended:
    """Return the list of both; ages, memory and sandboxes of runs may differ between them."""
    for _ in range(9):
        with suppress(AssertionError):
            return both(*url, "ls", *words, others=others)
    return both(*url, "ls", *words, others=others)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[{}]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nX-Next-Cursor: a\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 401 No\r\nContent-Length: 39\r\n\r\n{"code":"UNAUTHORIZED","message":"key"}',
    ],
)
def test_a_list_that_is_not_one_is_left_to_python(alone, tmp_path, sent):
    path = str(tmp_path / "broken.sock")
    with answered(path, sent):
        assert alone.run("--url", f"unix://{path}", "ls") == Ended(77, b"other\n", b"")


# ---- exec


@pytest.mark.promise("P93")
@pytest.mark.parametrize(
    ("words", "status", "others"),
    [
        (("ID", "echo out; echo err >&2"), 0, 0),
        (("ID", r"printf 'a\377b\342\200\250\302'; printf '\360\237\230\200' >&2"), 0, 0),
        (
            ("-e", "A=b=c", "-e", "B=é", "-w", "/tmp", "ID", "--", "sh", "-c", "echo $A $B; pwd"),
            0,
            0,
        ),
        (("--shell", "other", "ID", "cd /tmp; pwd; X=1"), 0, 0),
        (("--shell", "other", "ID", "pwd; echo $X"), 0, 0),
        (("--timeout", "60", "ID", "sh", "-c", "exit 7"), 7, 0),
        (("ID", "exit 3"), 3, 1),
        (("ID", "yes | head -c 300000"), 0, 0),
        (("ID", "sh", "-c", "kill -9 $$"), 137, 1),
        (("--timeout", "1", "ID", "sh", "-c", "echo begun; sleep 60"), 124, 1),
        (("--shell", "no name", "ID", "x"), 125, 1),
        (("--cwd", "/nonexistent", "ID", "pwd", "-P"), 125, 1),
        (("ID", "no-such", "program"), 127, 1),
        (("ID", "no-such\x1b[2J\u202e", "program"), 127, 1),
        (("ID", "/etc", "x"), 126, 1),
        (("ID", "", "x"), 125, 1),
        (("-e", "É=1", "ID", "echo", "x"), 125, 1),
        (("sbx_0000000000000000", "echo", "x"), 125, 1),
    ],
)
def test_a_command_in_a_sandbox_is_the_same(both, url, box, words, status, others):
    line = [box if word == "ID" else word for word in words]
    assert both(*url, "exec", *line, others=others).status == status


@contextmanager
def proxied(socket_path: str, path: str, lose: Callable[[bytes], int | None]) -> Iterator[None]:
    """Pass connections on; `lose` returns how many bytes of a response to pass, None for all."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def pump(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        def one(here: socket.socket) -> None:
            with here, socket.socket(socket.AF_UNIX) as there:
                there.connect(socket_path)
                request = here.recv(1 << 16)
                there.sendall(request)
                left = lose(request)
                if left is None:
                    back = threading.Thread(target=pump, args=(there, here))
                    back.start()
                    pump(here, there)
                    back.join()
                while left:
                    data = there.recv(left)
                    here.sendall(data)
                    left -= len(data)

        def serve() -> None:
            while True:
                try:
                    here, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(here,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


@pytest.mark.promise("P93")
@pytest.mark.parametrize("where", ["start", "output", "events"])
def test_a_command_whose_connection_breaks_runs_once(program, daemon, box, tmp_path, where):
    path = str(tmp_path / "proxy.sock")
    lost: list[bytes] = []
    marks = {"start": b"/exec HTTP", "output": b"/output?", "events": b"/output?"}

    def lose(request: bytes) -> int | None:
        if marks[where] not in request or lost:
            return None
        lost.append(request)
        # Of events, the head and the first piece of output.
        return 330 if where == "events" else 0

    counted = f"echo a; sleep 0.2; echo b; echo x >> {where}; wc -l < {where}"
    with proxied(daemon.socket, path, lose):
        done = program.run("--url", f"unix://{path}", "exec", box, counted)
    assert (done, len(program.others), len(lost)) == (Ended(0, b"a\nb\n1\n", b""), 1, 1)


@pytest.mark.real_start
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_the_command(program, url, box, number):
    script = "trap 'echo got; exit 9' INT TERM; echo begun; while :; do sleep 0.1; done"
    with begun(program, *url, "exec", box, "sh", "-c", script) as running:
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE_S)
    expected = (9, b"got\n") if number == signal.SIGINT else (128 + number, b"")
    assert (running.returncode, out, err, program.others) == (*expected, b"", [])
    commands = json.loads(run([*COMMAND, *url, "inspect", box]).out)["commands"]
    assert all(command["status"] != "running" for command in commands)


@pytest.mark.real_start
def test_an_interrupted_command_is_not_explained(program, url, box):
    # Without `exec`, dash forgets a SIGINT that comes while it starts another program.
    with begun(program, *url, "exec", box, "sh", "-c", "echo begun; exec sleep 600") as it:
        it.send_signal(signal.SIGINT)
        out, err = it.communicate(timeout=PATIENCE_S)
    assert (it.returncode, out, err, len(program.others)) == (130, b"", b"", 1)


@pytest.mark.real_start
@pytest.mark.parametrize(
    "command", [("exec", "ID", "yes", "y"), ("run", "-r", "sh", "-c", "yes y")]
)
def test_a_reader_that_leaves_ends_the_command(program, url, box, command):
    line = [box if word == "ID" else word for word in command]
    program.notes.write_text("")
    running = subprocess.Popen(
        [str(program.path), *url, *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert running.stdout is not None
    assert running.stdout.read(4) == b"y\ny\n"
    running.stdout.close()
    assert running.wait(PATIENCE_S) == 1
    assert program.others == []


@pytest.mark.parametrize(
    "command", [("exec", "ID", "echo", "x"), ("run", "-r", "sh", "-c", "echo x")]
)
def test_a_full_disk_is_the_same_error(program, url, box, command):
    line = [box if word == "ID" else word for word in command]
    results = []
    program.notes.write_text("")
    for words in ([str(program.path)], COMMAND):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*words, *url, *line],
                stdin=subprocess.DEVNULL,
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
        results.append((done.returncode, done.stderr))
    assert results[0] == results[1]
    assert results[0][0] == 125
    # The program noticed it, and the other one printed the error.
    assert len(program.others) == 1


@pytest.mark.parametrize(
    "command", [("version",), ("ls",), ("exec", "ID", "true"), ("config", "show"), ("--help",)]
)
def test_a_closed_stdout_is_refused(program, url, box, command):
    line = [box if word == "ID" else word for word in command]
    for words in ([str(program.path)], COMMAND):
        done = subprocess.run(
            ["sh", "-c", '"$@" >&-', "sh", *words, *url, *line],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert done.returncode == 125
        assert done.stderr.startswith(b"error: stdout is closed\nhint: ")


@contextmanager
def long_list(folder: Path) -> Iterator[list[str]]:
    """Yield the arguments for a list that is larger than a pipe."""
    ids = [f"sbx_{number:016x}" for number in range(20_000)]
    body = json.dumps([{"id": name, "created_at_unix": 1.0} for name in ids]).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    path = str(folder / "long.sock")
    with answered(path, head + body):
        yield ["--url", f"unix://{path}", "ls", "-q"]


@contextmanager
def printing(alone: Installed, words: Sequence[str], out: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that must not become the other one, and close `out` here."""
    alone.notes.write_text("")
    command = [str(alone.path), *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out) as running:
        os.close(out)
        yield running
    assert alone.others == []


def test_a_stdout_that_does_not_block_gets_the_whole_list(alone, tmp_path):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb") as output, long_list(tmp_path) as words:
        with printing(alone, words, writer) as running:
            time.sleep(0.2)  # Until the pipe is full.
            assert len(output.read().split()) == 20_000
        assert running.returncode == 0


def test_a_reader_that_leaves_a_list_is_noticed(alone, tmp_path):
    reader, writer = os.pipe()
    with (
        open(reader, "rb", buffering=0) as output,
        long_list(tmp_path) as words,
        printing(alone, words, writer) as running,
    ):
        assert output.read(4) == b"sbx_"
        output.close()
        assert running.wait(PATIENCE_S) == 1


@pytest.mark.root
def test_a_disk_that_is_full_after_a_part_of_a_list_is_the_same_error(program, tmp_path):
    onto = 'mount -t tmpfs -o size=64k none /mnt && exec "$@" >/mnt/list'
    with long_list(tmp_path) as words:
        program.notes.write_text("")
        line = ["unshare", "--mount", "sh", "-c", onto, "sh", str(program.path), *words]
        ended = run(line)
    assert ended.status == 125
    assert ended.err == (
        b"error: could not write the output: No space left on device\n"
        b"hint: free space on that disk and try again\n"
    )
    assert len(program.others) == 1


def test_a_slow_reader_gets_everything(program, url, box):
    command = [str(program.path), *url, "exec", box, "head", "-c", "3000000", "/dev/zero"]
    program.notes.write_text("")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as slow:
        assert slow.stdout is not None
        time.sleep(0.5)  # Until the pipe is full.
        assert sum(map(len, iter(partial(slow.stdout.read, 10_000), b""))) == 3_000_000
    assert slow.returncode == 0
    assert program.others == []


# ---- the daemon


def test_a_daemon_of_the_data_directory_is_found(both, daemon, monkeypatch):
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(daemon.data_dir))
    assert both("run", "-r", "sh", "-c", "echo $((6*7))").out == b"42\n"
    assert both("--data-dir", str(daemon.data_dir), "run", "-r", "sh", "-c", "exit 3").status == 3
    # The error names the daemon, which the user did not.
    assert both("run", "-i", "no-such", "-c", "x", others=1).status == 125


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
    alone, daemon, monkeypatch, tmp_path, environ, options
):
    names = {"DATA": str(daemon.data_dir), "unix://SOCKET": f"unix://{daemon.socket}"}
    for name in [name for name in os.environ if name.startswith("SANDKASTEN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environ.items():
        monkeypatch.setenv(name, names.get(value, value))
    options = {name: names.get(value, value) for name, value in options.items()}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = alone.run(*flags, "ls", "-q")
    try:
        place = find_server(place_of(options.get("data_dir"), None, options.get("url")))
    except SandkastenError:
        assert done.status == 77
        return
    if done.status != 77:
        assert (done.status, place.url) == (0, f"unix://{daemon.socket}")
        assert place.api_key is None
    else:
        unusual = set(environ) - {"SANDKASTEN_DATA_DIR", "SANDKASTEN_URL"}
        assert unusual or place.url != f"unix://{daemon.socket}"
