"""Start our programs in tests without importing them each time.

An interpreter that starts and imports is most of what a command costs. `install` has one process
per test process do that once. `python -m sandkasten_server.cli` and `python -m tests.unisolated`
are then forks of it, and so are scripts that use our package (`python -c`, also with `-W error`).
Whatever else a start gives a program is the same: the process is a child of the test
(CLONE_PARENT), has its own arguments, environment, directory, umask, session and files 0 to 2,
handles signals as a new interpreter does, and ends as one. The first process has one thread.

A start that differs in anything else is a real one: other options of the interpreter, another
locale, a function to call in the child, a script that asks what is imported. So is every start in a
test with the mark `real_start`, on a terminal (tests/cli/terminal.py), and by a shell or an
installed script.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scripts.distributions import directories

# Elsewhere every start is a real one: the arguments of clone differ.
SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"
MODULES = ("sandkasten_server.cli", "tests.unisolated", "tests.cli.start_probe")
_REPOSITORY = Path(__file__).resolve().parents[1]
# Programs of their own, which replace modules of others when they are imported.
# The last two run by other interpreters: one that has ipykernel, and one that has Dagger's library.
_NOT_IMPORTED = ("__main__", "evaluator", "bash_kernel", "session_program")
# Its modules need frameworks that are not installed here.
_ADAPTERS = ("sandkasten_integrations", "sandkasten.integrations")
_LARGEST = 1 << 18
# Above the numbers of the files that a process is given.
_HIGH = 600
_original = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_parameters = inspect.signature(_original)


def install() -> None:
    """Have forks take the place of new interpreters in this process. Twice is fine."""
    if SUPPORTED:
        subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


# ---- in the test ------------------------------------------------------------------------------


class _Server:
    """The first process, and the way to it."""

    def __init__(self) -> None:
        self.allowed = True
        self.started = 0
        self._lock = threading.Lock()
        self._there: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environ: dict[str, str] | None = None
        self._ready = False

    def start(self) -> None:
        if self._there is not None:
            return
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
            self._environ = _of_the_interpreter(os.environ)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked_programs", str(there.fileno())],
                pass_fds=[there.fileno()],
                cwd=_REPOSITORY,
                stdin=subprocess.DEVNULL,
            )
        self._there = here

    def stop(self) -> None:
        if self._there is not None and self._process is not None:
            self._there.close()
            self._process.wait()
            self._there, self._ready = None, False

    def is_ready(self, within_s: float) -> bool:
        assert self._there is not None
        if not self._ready and select.select([self._there], [], [], within_s)[0]:
            self._ready = self._there.recv(16) == b"ready"
            if not self._ready:
                # Real starts would hide it, and take minutes.
                raise RuntimeError("the process that forks commands has ended; see its output")
        return self._ready

    def fork(self, start: Start, files: list[int]) -> int | None:
        """Return the id of a new child of this process; None while the server is not ready."""
        if not self.allowed:
            return None
        with self._lock:
            self.start()
            assert self._there is not None
            if start.fixed != self._environ:
                return None
            # What is imported meanwhile takes seconds; a real start is faster.
            if not self.is_ready(0):
                return None
            asked = [json.dumps(start.told).encode()]
            passed = array.array("i", files)
            self._there.sendmsg(asked, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
            self.started += 1
            return int(self._there.recv(16))


@dataclass(frozen=True, slots=True)
class Start:
    told: dict[str, Any]
    fixed: dict[str, str]
    """What an interpreter reads from the environment before it runs anything."""


_server = _Server()


def start(wait_s: float = 0) -> bool:
    """Start the first process, as the first command does; return whether it can fork already."""
    _server.start()
    return _server.is_ready(wait_s)


def stop() -> None:
    _server.stop()


def started() -> int:
    """Return how many forks there were in this process."""
    return _server.started


def only_real(value: bool) -> None:
    """Decide whether starts are real ones from now on."""
    _server.allowed = not value


def _of_the_interpreter(environ: Any) -> dict[str, str]:
    fixed = {}
    known = {*sys.path, str(_REPOSITORY)}
    for name, value in environ.items():
        if name == "PYTHONPATH" and set(value.split(os.pathsep)) <= known:
            continue
        if name == "LANG" or name.startswith(("PYTHON", "LC_", "LD_", "MALLOC_")):
            fixed[name] = value
    fixed.pop("PYTHONDONTWRITEBYTECODE", None)
    return fixed


def _execute_child(self: Any, *positional: Any) -> None:
    given = _parameters.bind(self, *positional).arguments
    start = _start(given)
    pid = None
    if start is not None:
        own = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        files = [number if file == -1 else file for number, file in enumerate(own)]
        pid = _server.fork(start, [*files, *given["pass_fds"]])
    if pid is None:
        _original(self, *positional)
        return
    self.pid = pid
    self._child_created = True
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    self._close_pipe_fds(*(given[name] for name in pipes))


def _start(given: dict[str, Any]) -> Start | None:
    """Return what the fork is to do; None for what needs a real start."""
    words = given["args"]
    if not isinstance(words, list | tuple) or len(words) < 3:
        return None
    words = [os.fspath(word) for word in words]
    if words[0] != sys.executable:
        return None
    strict = words[1:3] == ["-W", "error"]
    what, name, *more = words[3 if strict else 1 :] + ["", ""]
    more = more[:-2]
    ours = name in MODULES if what == "-m" else what == "-c" and _is_ordinary(name)
    if not ours:
        return None
    plain = {
        "executable": (None, sys.executable), "preexec_fn": (None,), "close_fds": (True,),
        "shell": (False,), "gid": (None,), "gids": (None,), "uid": (None,), "umask": (-1,),
        "process_group": (-1,), "restore_signals": (True,),
    }  # fmt: skip
    if any(given[name] not in values for name, values in plain.items() if name in given):
        return None
    environ = {**(os.environ if given["env"] is None else given["env"])}
    cwd = os.path.abspath(given["cwd"] or ".")
    texts = [*words, *environ.items(), cwd]
    strings = all(isinstance(one, str) for one in (*words, cwd, *environ, *environ.values()))
    whole = not any("\0" in str(one) for one in texts)
    if not (strings and whole and os.path.isdir(cwd)) or len(given["pass_fds"]) > 8:
        return None
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return None
    told = {
        "strict": strict, "what": what, "name": name, "words": more, "cwd": cwd,
        "environ": environ, "umask": _umask(),
        "session": bool(given["start_new_session"]), "passed": list(given["pass_fds"]),
    }  # fmt: skip
    return Start(told, _of_the_interpreter(environ))


def _umask() -> int:
    """Return the umask without a change of it, which other threads would see."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def _is_ordinary(script: str) -> bool:
    """Return whether a script uses our package, and does not ask what is imported."""
    asks = "sys.modules" in script or "sys.meta_path" in script
    return "sandkasten" in script and not asks


# ---- in the first process -----------------------------------------------------------------------


def _serve(there: socket.socket) -> dict[str, Any] | None:
    """Answer requests; in a fork, return what it is to do."""
    try:
        there.send(b"ready")
    except BrokenPipeError:  # The test process has ended already.
        return None
    everything = signal.valid_signals()
    while True:
        try:
            asked, files, _, _ = socket.recv_fds(there, _LARGEST, 16)
        except ConnectionResetError:  # The test process has ended without a look at "ready".
            return None
        if not asked:
            return None
        # A signal that comes before the fork has its handlers waits for them.
        before = signal.pthread_sigmask(signal.SIG_SETMASK, everything)
        pid = _fork_sibling()
        if pid == 0:
            there.close()
            told: dict[str, Any] = json.loads(asked)
            _become(told, files)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return told
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for file in files:
            os.close(file)
        there.send(str(pid).encode())


def _fork_sibling() -> int:
    """Fork a child of the parent; what else a fork does is done by Python as for its own."""
    own = ctypes.PyDLL(None, use_errno=True)
    clone, parent, set_id, clear_id = 56, 0x8000, 0x01000000, 0x00200000
    flags = parent | set_id | clear_id | signal.SIGCHLD
    place = ctypes.c_void_p(_place_of_the_thread_id(own))
    own.PyOS_BeforeFork()
    null = ctypes.c_void_p(None)
    own.syscall.restype = ctypes.c_long
    pid: int = own.syscall(
        ctypes.c_long(clone), ctypes.c_ulong(flags), null, null, place, ctypes.c_ulong(0)
    )
    if pid == 0:
        own.PyOS_AfterFork_Child()
    else:
        own.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "clone")
    return pid


def _place_of_the_thread_id(own: ctypes.PyDLL) -> int:
    """Return where the C library remembers its thread's id, for the kernel to write the new one."""
    pr_get_tid_address = 40
    place = ctypes.c_void_p()
    if own.prctl(pr_get_tid_address, ctypes.byref(place), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_GET_TID_ADDRESS")
    return place.value or 0


def _become(told: dict[str, Any], files: list[int]) -> None:
    """Give this process what a new program would have been given."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    os.closerange(0, _HIGH)
    for file, number in zip(high, (0, 1, 2, *told["passed"]), strict=True):
        os.dup2(file, number)
        os.close(file)
    if told["session"]:
        os.setsid()
    os.umask(told["umask"])
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environ"])
    time.tzset()
    first = told["cwd"] if told["what"] == "-m" else ""
    sys.path[:] = [first, *_entries(told["environ"]), *_BASE]
    sys.argv[:] = [told["what"], *told["words"]]
    options = ["-W", "error"] if told["strict"] else []
    sys.orig_argv[1:] = [*options, told["what"], told["name"], *told["words"]]
    if told["strict"]:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        made = _text(number, "w" if number else "r", getattr(sys, name))
        for place in (name, f"__{name}__"):
            setattr(sys, place, made)


def _entries(environ: Any) -> list[str]:
    return [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _text(number: int, mode: str, before: Any) -> Any:
    """Return a stream as the interpreter makes it, PYTHONUNBUFFERED included."""
    raw = io.FileIO(number, mode, closefd=False)
    at_once = before.write_through
    lines = mode == "w" and not at_once and (number == 2 or raw.isatty())
    buffer: Any = io.BufferedReader(raw) if mode == "r" else raw
    if mode == "w" and not at_once:
        buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, before.encoding, before.errors, line_buffering=lines, write_through=at_once
    )


def _import_all() -> None:
    """Import whatever a command or a daemon may import."""
    gc.disable()
    for directory in directories():
        for package in (directory / "src").glob("sandkasten*"):
            if package.name not in _ADAPTERS:
                _import_package(package)
    importlib.import_module("tests.unisolated.composition")
    gc.enable()
    gc.collect()
    # So that a collection in a fork does not write to pages that all of them share.
    gc.freeze()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import started a thread: a fork would lose it")


def _import_package(package: Path) -> None:
    importlib.import_module(package.name)
    for found in pkgutil.walk_packages([str(package)], f"{package.name}."):
        # The path of the adapters is that of their distribution, if it is installed.
        if found.name.startswith(_ADAPTERS) or found.name.rpartition(".")[2] in _NOT_IMPORTED:
            continue
        importlib.import_module(found.name)


def _run(what: str, name: str) -> int:
    """Run a module or a script as the interpreter does, and return the status to exit with."""
    try:
        if what == "-m":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(name, "<string>", "exec"), main.__dict__)
    except SystemExit as exc:
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        sys.stderr.write(f"{exc.code}\n")
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        return -signal.SIGINT
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


_OWN = sys.modules[__name__]
# Without the directory and the entries of PYTHONPATH, which each start has of its own.
_BASE = sys.path[1 + len(_entries(os.environ)) :]


def _end(status: int) -> NoReturn:
    """End as an interpreter does, but leave alone what was there before the fork.

    Taking all modules apart would copy every page of this process.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"] = _OWN
    gc.collect()
    for stream, failed in ((sys.stdout, 120), (sys.stderr, status)):
        try:
            stream.flush()
        except OSError:
            status = failed
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    # Ctrl-C is for the tests, which end this process by closing its socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_all()
    _told = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _told is not None:
        _end(_run(_told["what"], _told["name"]))
