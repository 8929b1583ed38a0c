"""Hold a started Python interpreter until a program is handed to it. Runs in the sandbox.

It runs as `sitecustomize` of `python3 -B main.py`, before there is a main.py: the interpreter has
done its own start. The listed modules are imported, one byte on stdout reports readiness, and a
read of stdin waits. One message arrives, with what a fresh process gets from exec; the rest of
stdin is the program's. Then this module removes its traces and returns, and the interpreter runs
main.py as it always does: no frame, no `__main__` and no traceback is made here.

A program that could notice that the interpreter started without it gets a new one, by exec in the
same process: a changed variable that is read at the start, or a file that hides an imported module.

Python 3.6 and later, and no import that the interpreter has not made itself.
"""

import io
import os
import sys

# Read at the start of the interpreter or of the libraries below it, where no record is kept.
_EARLY = (
    b"PYTHON",
    b"LD_",
    b"LC_",
    b"LANG",
    b"PATH",
    b"HOME",
    b"TZ",
    b"MALLOC_",
    b"GLIBC_",
    b"LOCPATH",
    b"GCONV_PATH",
    b"OMP_",
    b"OPENBLAS_",
    b"GOTO",
    b"MKL_",
    b"KMP_",
    b"BLIS_",
    b"NPY_",
    b"OPENSSL_",
)
_EVERY = b""  # stands for all variables


class _Recorded(dict):  # type: ignore[type-arg]
    """The environment while modules are imported: notes which variables they read."""

    def __init__(self, data: "dict[bytes, bytes]") -> None:
        super().__init__(data)
        self.reads: set[bytes] = set()

    def __getitem__(self, name: bytes) -> object:
        self.reads.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.reads.add(name)  # type: ignore[arg-type]
        return super().__contains__(name)

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.reads.add(_EVERY)
        return super().__iter__()


def hold(file: str, modules: "tuple[str, ...]") -> None:
    environ = os.environ._data  # type: ignore[attr-defined]
    _remove_traces(file, environ)
    null = os.open("/dev/null", os.O_RDWR)
    # What is printed while modules are imported is not output of the program.
    outputs = os.dup(1), os.dup(2)
    os.dup2(null, 1)
    os.dup2(null, 2)
    failure = None
    try:
        # The sitecustomize of the image, if it has one.
        __import__("sitecustomize")
    except BaseException as exc:  # noqa: BLE001  (raised below, where the interpreter expects it)
        failure = exc
    before, loaded = dict(environ), set(sys.modules)
    try:
        reads = _import_all(modules, environ) if modules else set()
    except BaseException as exc:  # noqa: BLE001  (a half-imported module cannot be used)
        os.write(outputs[1], f"{type(exc).__name__}: {exc}".encode("utf-8", "replace"))
        os._exit(1)
    added = {name: value for name, value in environ.items() if before.get(name) != value}
    imported = {name.partition(".")[0] for name in set(sys.modules) - loaded}
    sys.stdout.flush()
    sys.stderr.flush()
    for fd in (1, 2):
        os.dup2(outputs[fd - 1], fd)
        os.close(outputs[fd - 1])
    os.close(null)

    os.write(1, b"\6")
    size = int.from_bytes(_read(4), "big")
    stdin, cwd, count, *words = _read(size).split(b"\0")
    argv, env = words[: int(count)], dict(pair.split(b"=", 1) for pair in words[int(count) :])

    os.chdir(cwd)
    if stdin == b"none":
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    with open("/proc/self/cmdline", "rb") as cmdline:
        started = cmdline.read().split(b"\0")[:-1]
    changed = {name for name in set(before) | set(env) if before.get(name) != env.get(name)}
    arguments = argv[len(started) :]
    if (
        argv[: len(started)] != started
        or (arguments and not hasattr(sys, "argv"))
        or changed & reads
        or (changed and _EVERY in reads)
        or any(name.startswith(_EARLY) for name in changed)
        or (imported and _hidden(imported, started[-1]))
    ):
        _start_over(argv, env)
    _set_environment(environ, {**env, **added})
    for argument in map(os.fsdecode, arguments):
        sys.argv.append(argument)
        if hasattr(sys, "orig_argv"):
            sys.orig_argv.append(argument)
    if stdin == b"none":
        _reopen_stdin()
    if failure is not None:
        raise failure


def _remove_traces(file: str, environ: "dict[bytes, bytes]") -> None:
    here = os.path.dirname(file)
    rest = environ.pop(b"PYTHONPATH").partition(b":")[2]
    os.unsetenv("PYTHONPATH")
    if rest:
        os.environb[b"PYTHONPATH"] = rest
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    del sys.modules["sitecustomize"]
    os.unlink(file)
    os.rmdir(here)


def _import_all(modules: "tuple[str, ...]", environ: "dict[bytes, bytes]") -> "set[bytes]":
    """Import modules, without those that the image does not have. Return what they read."""
    recorded = _Recorded(environ)
    os.environ._data = os.environb._data = recorded  # type: ignore[attr-defined]
    for name in modules:
        try:
            __import__(name)
        except ImportError as exc:
            if exc.name != name.partition(".")[0]:
                raise
    environ.clear()
    environ.update(recorded)
    os.environ._data = os.environb._data = environ  # type: ignore[attr-defined]
    _freeze_objects()
    return recorded.reads


def _freeze_objects() -> None:
    """Leave what was imported out of garbage collection: at exit it would cost 80 of 100 ms."""
    was_loaded = "gc" in sys.modules
    import gc

    if hasattr(gc, "freeze"):
        gc.collect()
        gc.freeze()
    if not was_loaded:
        del sys.modules["gc"]


def _read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _hidden(imported: "set[str]", main: bytes) -> bool:
    """Return whether a name beside the program hides a module that was imported already."""
    names = os.listdir(os.path.dirname(os.fsdecode(main)))
    return any(name.partition(".")[0] in imported for name in names)


def _start_over(argv: "list[bytes]", env: "dict[bytes, bytes]") -> None:
    # The interpreter ignores these, and exec would keep that.
    import _signal  # type: ignore[import-not-found]

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    os.execvpe(argv[0], argv, env)  # noqa: S606  (the command of the request)


def _set_environment(environ: "dict[bytes, bytes]", env: "dict[bytes, bytes]") -> None:
    if list(environ.items()) == list(env.items()):
        return
    for name in environ:
        os.unsetenv(name)
    environ.clear()
    for name, value in env.items():
        os.putenv(name, value)
        environ[name] = value


def _reopen_stdin() -> None:
    """Make sys.stdin as the interpreter makes it; whether it can seek is decided only once."""
    old = sys.stdin
    buffer = open(0, "rb", closefd=False)  # noqa: SIM115  (stays open)
    buffer.raw.name = "<stdin>"  # type: ignore[attr-defined]
    new = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n")
    new.mode = "r"  # type: ignore[misc]
    sys.stdin = sys.__stdin__ = new  # type: ignore[misc]
