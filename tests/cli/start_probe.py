"""Print what a program finds when it starts, or end in the way that is asked for."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path


def _stream(stream: object) -> list[object]:
    names = ("encoding", "errors", "line_buffering", "write_through", "closed")
    return [getattr(stream, name) for name in names]


def _found() -> dict[str, object]:
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    umask = os.umask(0)
    os.umask(umask)
    files = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            files[name] = [os.readlink(f"/proc/self/fd/{name}"), os.get_inheritable(int(name))]
        except OSError:
            continue  # The listing's own.
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path[:2],
        "cwd": os.getcwd(),
        "environ": dict(sorted(os.environ.items())),
        "parent": os.getppid(),
        "group": "own" if os.getpgid(0) == os.getpid() else os.getpgid(0),
        "session": "own" if os.getsid(0) == os.getpid() else os.getsid(0),
        "umask": umask,
        "files": files,
        "signals": {name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt")},
        "ids": [status[name] for name in ("Uid", "Gid", "Groups", "CapEff", "Seccomp")],
        "threads": [status["Threads"], threading.active_count(), threading.main_thread().name],
        "own id": os.getpid() == threading.get_native_id(),
        "limits": [resource.getrlimit(one) for one in range(16)],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "zone": time.tzname,
        "streams": [_stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "stdin": sys.stdin.read() if not sys.stdin.isatty() else "",
        "main": __name__,
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    match sys.argv[1:]:
        case ["fail"]:
            raise ValueError("on purpose")
        case ["say"]:
            sys.exit("a message")
        case ["exit", code]:
            sys.exit(int(code))
        case ["wait"]:
            _say("up")
            time.sleep(60)
        case ["abort"]:
            os.abort()
        case ["interrupt"]:
            signal.raise_signal(signal.SIGINT)
        case ["late"]:
            import atexit

            atexit.register(_say, "at exit")
            threading.Timer(0.1, _say, ["thread"]).start()
            _say("main")
        case _:
            _say(json.dumps(_found()))


if __name__ == "__main__":
    main()
