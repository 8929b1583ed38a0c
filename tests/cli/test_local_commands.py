"""The command line across processes, on real sandboxes.

Each command is a process. The main commands run twice: without a daemon, and with one that serves
the data directory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND
from tests.cli.terminal import Person
from tests.client.http.served import served
from tests.patience import PATIENCE_S
from tests.shared_sandbox_cases import few

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="must be root to see what root sees"),
]

# tests/cli/test_through_a_daemon.py has what a daemon changes.
both_ways = pytest.mark.parametrize("local_only", few(["embedded", "daemon"]), indirect=True)
Cli = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def served_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("served") / "data"
    with served(data, backend="local"):
        yield data


@pytest.fixture(autouse=True)
def local_only(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    unisolated_only: None,
) -> Path:
    monkeypatch.delenv("SANDKASTEN_BACKEND")
    alone = getattr(request, "param", "embedded") == "embedded"
    data: Path = tmp_path / "data" if alone else request.getfixturevalue("served_data")
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(data))
    return data


@pytest.fixture
def cli(local_only: Path) -> Iterator[Cli]:
    yield _run
    done = _run("rm", "--all")
    assert done.returncode == 0, done


def _run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture
def box(cli: Cli) -> str:
    done = cli("create")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@both_ways
def test_python_node_and_bash_run_once(cli):
    assert cli("run", "-c", "print(6*7)").stdout == b"42\n"
    assert cli("run", "-r", "node", "-c", "console.log(6*7)").stdout == b"42\n"
    assert cli("run", "-r", "bash", "-c", "echo $((6*7))").stdout == b"42\n"
    assert json.loads(cli("ls", "--json").stdout) == []


@both_ways
def test_the_shell_remembers_from_one_process_to_the_next(cli, box):
    cli("exec", box, "cd /tmp && export A=1")
    done = cli("exec", box[:12], "echo $A; pwd")
    assert (done.stdout, done.returncode) == (b"1\n/tmp\n", 0)


@pytest.mark.real_start
@both_ways
def test_a_terminated_run_ends_its_code_and_its_sandbox(cli):
    asleep = f"{600 + os.getpid() % 100}.{time.monotonic_ns()}"
    running = subprocess.Popen(
        [*COMMAND, "run", "-r", "sh", "-c", f"sleep {asleep}"], stderr=subprocess.PIPE
    )
    with running:
        _until(lambda: _sleeps(asleep))
        running.terminate()
        assert running.stderr is not None
        assert running.stderr.read() == b""
        assert running.wait(PATIENCE_S) == 143
    _until(lambda: not _sleeps(asleep))


def _sleeps(seconds: str) -> bool:
    """Return whether a sleep of so many seconds runs anywhere on this machine."""
    wanted = b"sleep\0" + seconds.encode() + b"\0"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes() == wanted:
                return True
    return False


def _until(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@both_ways
def test_a_sandbox_outlives_the_process_that_was_killed(cli, tmp_path):
    maker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time\n"
            "from sandkasten import Sandbox\n"
            "box = Sandbox()\n"
            "box.exec('cd /tmp; export MINE=yes')\n"
            "pid = box.exec('echo $$').output.strip()\n"
            "print(box.id, pid, flush=True)\n"
            "time.sleep(600)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    with maker.stdout:
        name, shell = maker.stdout.readline().split()
        maker.kill()
        maker.wait()
    assert [info["id"] for info in json.loads(cli("ls", "--json").stdout)] == [name]
    done = cli("exec", name, "echo $MINE; pwd; echo $$")
    assert done.stdout.decode() == f"yes\n/tmp\n{shell}\n"


@both_ways
def test_exit_statuses_show_what_happened(cli, box):
    assert cli("exec", box, "exit 3").returncode == 3
    assert cli("exec", box, "--", "sh", "-c", "exit 4").returncode == 4
    assert cli("exec", box, "sh", "-c", "kill -9 $$").returncode == 137
    assert cli("exec", "--timeout", "0.3", box, "sleep", "60").returncode == 124
    assert cli("exec", box, "no-such-program", "x").returncode == 127
    assert cli("exec", "sbx_0000000000000000", "true").returncode == 125


@both_ways
def test_input_is_piped_through_and_output_is_live(cli, box):
    assert cli("exec", box, "cat", "-", stdin=b"\x00\xff" * 100_000).stdout == b"\x00\xff" * 100_000
    process = subprocess.Popen(
        [*COMMAND, "exec", box, "sh", "-c", "echo early; read x; echo late $x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"early\n"
    out, _ = process.communicate(b"now\n", timeout=PATIENCE_S)
    assert (out, process.returncode) == (b"late now\n", 0)


@pytest.mark.real_start
@both_ways
def test_ctrl_c_ends_the_command_and_not_the_sandbox(cli, box):
    process = subprocess.Popen(
        [*COMMAND, "exec", box, "echo begun; sleep 60"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 130
    assert cli("exec", box, "echo alive").stdout == b"alive\n"


def test_closing_the_output_pipe_ends_the_command(cli, box):
    done = subprocess.run(
        f"{' '.join(COMMAND)} exec {box} yes | head -n 2",
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"y\ny\n"
    assert b"Traceback" not in done.stderr
    end = time.monotonic() + PATIENCE_S
    while any(one["name"] == "yes" for one in json.loads(cli("ps", "--json", box).stdout)):
        assert time.monotonic() < end, "yes still runs"


@both_ways
def test_trees_are_copied_both_ways_and_compare_equal(cli, box, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/blob").write_bytes(os.urandom(3_000_000))
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    assert cli("cp", str(tree), f"{box}:").returncode == 0
    assert cli("exec", box, "/workspace/tree/run").stdout == b"ran\n"
    assert cli("cp", f"{box}:tree", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/sub/blob").read_bytes() == (tree / "sub/blob").read_bytes()
    assert cli("cp", "-", f"{box}:in.txt", stdin=b"streamed\n").returncode == 0
    assert cli("cp", f"{box}:in.txt", "-").stdout == b"streamed\n"


def test_hostile_trees_are_copied_inside_the_target_or_refused(cli, box, tmp_path):
    cli("exec", box, "mkdir -p evil && cd evil && ln -s /etc/passwd abs && ln -s ../../.. up")
    cli("exec", box, "cd /workspace/evil && ln -s ok fine && echo 1 > ok && mkfifo pipe")
    done = cli("cp", f"{box}:evil", str(tmp_path / "got"))
    assert done.returncode == 0, done
    assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["fine", "ok"]
    assert done.stderr.count(b"warning: skipped") >= 2


def test_hostile_names_cannot_control_the_terminal(cli, box):
    cli("exec", box, 'evil=$(printf \'/tmp/\\033]0;x\\007\'); cp /bin/sleep "$evil"; "$evil" 60 &')
    end = time.monotonic() + PATIENCE_S
    while b"\\x1b]0;x\\x07 60" not in (shown := cli("ps", box).stdout):
        assert time.monotonic() < end, shown
    assert b"\x1b" not in shown


@both_ways
def test_rm_removes_several_or_all(cli, box):
    other = cli("create").stdout.decode().strip()
    third = cli("create").stdout.decode().strip()
    assert cli("rm", box, other).stdout.decode().split() == [box, other]
    assert cli("rm", "--all").stdout.decode().split() == [third]
    assert cli("rm", box).returncode == 125


def test_completion_knows_the_sandboxes(cli, box, monkeypatch):
    monkeypatch.setenv("_SANDKASTEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "sandkasten rm sbx_")
    monkeypatch.setenv("COMP_CWORD", "2")
    offered = cli().stdout.decode().split()
    monkeypatch.delenv("_SANDKASTEN_COMPLETE")
    assert offered == [box]


def test_doctor_describes_this_host(cli):
    done = cli("doctor", "--json")
    found = json.loads(done.stdout)
    assert (found["ready"], done.returncode) == (True, 0), found
    assert {"bubblewrap", "cgroups"} <= {one["name"] for one in found["requirements"]}


@both_ways
def test_an_interactive_shell_is_a_real_terminal(cli, box):
    with Person([*COMMAND, "shell", box], rows=30, cols=100) as person:
        person.type("stty size; tty; echo TERM=$TERM\r")
        person.wait_for("30 100")
        person.wait_for("/dev/pts/")
        person.resize(41, 133)
        end = time.monotonic() + PATIENCE_S
        while True:
            person.type("stty size\r")
            try:
                person.wait_for("41 133", seconds=2)
                break
            except AssertionError:
                assert time.monotonic() < end, "the new size never arrived"
        person.type("sh -c 'echo begun-$((1+1)); exec sleep 60'\r")
        person.wait_for("begun-2")
        person.type("\x03")
        person.wait_for("$ ")
        person.type("echo after-$?\r")
        person.wait_for("after-130")
        person.type("exit 9\r")
        assert person.status() == 9
        assert person.cooked()
    assert cli("exec", box, "echo alive").stdout == b"alive\n"


def test_the_host_name_is_a_flag_of_create_run_and_shell(cli):
    made = cli("create", "--hostname", "made").stdout.decode().strip()
    assert cli("exec", made, "uname -n").stdout == b"made\n"
    assert cli("rm", made).returncode == 0
    assert cli("run", "--hostname", "once", "-r", "sh", "-c", "uname -n").stdout == b"once\n"
    with Person([*COMMAND, "shell", "--hostname", "typed"]) as person:
        person.wait_for("destroyed when this shell ends")
        person.type("uname -n | tr a-z A-Z; exit 0\r")
        person.wait_for("TYPED")
        assert person.status() == 0


def test_a_shell_without_a_sandbox_creates_and_removes_one(cli):
    with Person([*COMMAND, "shell"]) as person:
        person.wait_for("destroyed when this shell ends")
        person.type("cd /usr\r")
        person.wait_for("sbx_")
        person.wait_for(":/usr$ ")
        person.type("id -u; exit 0\r")
        person.wait_for("1000")
        assert person.status() == 0
    assert json.loads(cli("ls", "--json").stdout) == []


@both_ways
def test_a_terminal_that_hangs_up_leaves_no_shell_behind(cli, box):
    with Person([*COMMAND, "shell", box]) as person:
        person.type("echo up-$((40+2)); exec sleep 600\r")
        person.wait_for("up-42")
        os.kill(person.pid, signal.SIGHUP)
        person.status()
    end = time.monotonic() + PATIENCE_S
    while any("600" in one["cmdline"] for one in json.loads(cli("ps", "--json", box).stdout)):
        assert time.monotonic() < end, "the program of the terminal still runs"
