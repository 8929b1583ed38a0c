# ruff: noqa: E501  (a program is easier to read on one line)
"""Programs that show everything a Python program can see of how it was started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Program:
    code: bytes
    args: tuple[str, ...] = ()
    stdin: bytes | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def _program(code: str, *args: str, **more: object) -> Program:
    return Program(code.encode(), args, **more)  # type: ignore[arg-type]


PROGRAMS = {
    "one line": _program("print(1+1)"),
    "empty": _program(""),
    "arguments": _program("import sys; print(sys.argv, sys.orig_argv)", "a", "", "é -x", "--"),
    "main module": _program(
        "import sys; m = sys.modules['__main__']; print(sorted(vars(m)), __file__, __name__,"
        " __spec__, __package__, __builtins__, __loader__.__class__, __loader__.name,"
        " __loader__.path, __doc__, __annotations__ if '__annotations__' in vars(m) else 0)"
    ),
    "modules": _program("import sys; print(sorted(sys.modules))"),
    "path": _program(
        "import sys; print(sys.path, sys.meta_path, sys.path_hooks and 1,"
        " sorted(sys.path_importer_cache))"
    ),
    "flags": _program(
        "import sys; print(sys.flags, sys._xoptions, sys.warnoptions, sys.dont_write_bytecode,"
        " sys.executable, sys.prefix, sys.base_prefix, sys.getrecursionlimit(), sys.getswitchinterval())"
    ),
    "encodings": _program(
        "import sys, locale; print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(),"
        " locale.getpreferredencoding(False), [(s.encoding, s.errors, s.newlines, s.line_buffering,"
        " s.mode, s.name, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)])"
    ),
    "environment": _program(
        "import os, posix, subprocess; print(list(os.environ.items()), list(os.environb.items()),"
        " posix.environ == os.environb._data, flush=True); subprocess.run(['env'])",
        env={"MINE": "é", "EMPTY": ""},
    ),
    "process": _program(
        "import os, resource, signal, threading; print(os.getcwd(), os.umask(0), sorted(os.listdir('/proc/self/fd')),"
        " os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.getuid(), os.getgroups(),"
        " resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_STACK),"
        " os.nice(0), threading.active_count(), threading.current_thread().name)\n"
        "print([signal.getsignal(n) for n in signal.valid_signals()], signal.pthread_sigmask(0, []))"
    ),
    "descriptors": _program(
        "import os, stat\nfor fd in (0, 1, 2):\n s = os.fstat(fd); print(fd, stat.S_IFMT(s.st_mode),"
        " os.get_inheritable(fd), os.isatty(fd), os.get_blocking(fd), os.readlink(f'/proc/self/fd/{fd}').split(':')[0])"
    ),
    "inherited descriptors": _program("import subprocess; subprocess.run(['ls', '/proc/self/fd'])"),
    "no input": _program(
        "import sys; print(sys.stdin, sys.stdin.seekable(), sys.stdin.tell(), sys.stdin.isatty(),"
        " sys.stdin is sys.__stdin__, repr(sys.stdin.read()), sys.stdin.buffer.raw)"
    ),
    "no input for input()": _program("input('say: ')"),
    "input()": _program("print([input(), input('p ')])\ninput()", stdin=b"one\r\ntwo\n"),
    "input read": _program(
        "import sys; print(repr(sys.stdin.readline()), repr(sys.stdin.read()), sys.stdin.seekable())",
        stdin="é\nrest\0end".encode(),
    ),
    "input bytes": _program(
        "import os, sys; print(os.read(0, 3), sys.stdin.buffer.read(2), sys.stdin.buffer.read())",
        stdin=bytes(range(256)),
    ),
    "empty input": _program("import sys, os; print(repr(sys.stdin.read()), os.read(0, 1))", stdin=b""),
    "large input": _program(
        "import sys; d = sys.stdin.buffer.read(); print(len(d), hash(d) == hash(b'x' * len(d)))",
        stdin=b"x" * 300_000,
    ),
    "input of a child": _program("import subprocess; subprocess.run(['cat'])", stdin=b"for cat\n"),
    "input left unread": _program("print('bye')", stdin=b"y" * 100_000),
    "exit 3": _program("import sys; sys.exit(3)"),
    "exit with a string": _program("import sys; print('out'); sys.exit('because')"),
    "exit with an object": _program("import sys; sys.exit([1, 2])"),
    "exit None": _program("raise SystemExit"),
    "exit 256 and negative": _program("import sys; sys.exit(-1)"),
    "quit": _program("print(quit, exit); quit(5)"),
    "os._exit": _program("import os; print('lost'); os._exit(7)"),
    "killed": _program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "terminated": _program("import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGTERM)"),
    "interrupted": _program("import signal; signal.raise_signal(signal.SIGINT)"),
    "abort": _program("import os; os.abort()"),
    "broken pipe": _program(
        "import os, sys; r, w = os.pipe(); os.close(r)\ntry: os.write(w, b'x')\nexcept OSError as e: print(e)"
    ),
    "handler": _program(
        "import signal, time; signal.signal(signal.SIGALRM, lambda n, f: print(n, f.f_lineno, f.f_back));\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()"
    ),
    "traceback": _program("def f(x):\n    return x / 0\n\ntry:\n    f(1)\nexcept Exception as e:\n    raise ValueError('é') from e"),
    "stack": _program("import sys, traceback, inspect; traceback.print_stack(); f = sys._getframe(); print(f.f_back, len(inspect.stack()), f.f_code.co_filename)"),
    "deep recursion": _program("def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(e, e.__traceback__ is not None)\nn = 0\ndef g():\n    global n\n    n += 1\n    g()\ntry:\n    g()\nexcept RecursionError:\n    print(n)"),
    "recursion traceback": _program("def f(): f()\nf()"),
    "syntax error": _program("print('never')\nif True\n    pass\n"),
    "tab error": _program("if 1:\n\tx = 1\n        y = 2\n"),
    "null byte": Program(b"print(1)\0\n"),
    "not utf-8": Program(b"# \xe9\nprint(1)\n"),
    "latin-1": Program(b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n"),
    "unknown encoding": Program(b"# coding: nonsense\n"),
    "bom": Program(b"\xef\xbb\xbfprint('\xc3\xa9')\n"),
    "crlf": Program(b"print(1)\r\nprint('''a\r\nb''')\r\n"),
    "no newline at the end": Program(b"if 1: print(2)"),
    "future": _program("from __future__ import annotations\nx: nothing = 1\nprint(__annotations__)"),
    "docstring": _program("'''doc'''\nprint(__doc__)"),
    "source": _program("import inspect, sys\ndef f():\n    return 1  # here\nprint(inspect.getsource(f), inspect.getsourcefile(f), len(inspect.getsource(sys.modules['__main__'])))"),
    "pickle": _program("import pickle\nclass A:\n    def __eq__(self, o): return type(o) is A\ndata = pickle.dumps(A()); print(data, pickle.loads(data) == A(), A.__module__, A)"),
    "import main": _program("import __main__; print(__main__.__dict__ is globals())"),
    "neighbours": _program("import beside; print(beside.x, beside.__file__, beside.__cached__)\nimport os; print(sorted(os.listdir('.')))", files={"beside.py": b"x = 4"}),
    "package beside": _program("import pack.inner; print(pack.inner.__package__)", files={"pack/__init__.py": b"", "pack/inner.py": b""}),
    "shadowed": _program("import random", files={"random.py": b"print('mine')"}),
    "customize is not imported from beside": _program("import sys; print('sitecustomize' in sys.modules)", files={"sitecustomize.py": b"print('no')"}),
    "customize by name": _program("import sitecustomize", files={"sitecustomize.py": b"print('here')"}),
    "atexit": _program("import atexit; atexit.register(print, 'last'); print('first'); 1/0"),
    "deleted at exit": _program("class A:\n    def __del__(self): print('gone', A is None)\na = A()\nb = [A()]; b.append(b)"),
    "threads": _program("import threading\ne = threading.Event()\nthreading.Thread(target=lambda: (e.wait(), print('late'))).start()\nprint('main', threading.main_thread().name); e.set()"),
    "daemon thread": _program("import threading, time\nthreading.Thread(target=time.sleep, args=(1004,), daemon=True).start(); print('done')"),
    "thread fails": _program("import threading\nt = threading.Thread(target=lambda: 1/0, name='t'); t.start(); t.join()"),
    "fork": _program("import os, sys; print('once', flush=True)\nif os.fork() == 0:\n    print('child'); sys.exit(9)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))"),
    "fork with a full buffer": _program("import os; print('twice')\nif os.fork(): os.wait()"),
    "multiprocessing fork": _program("import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))"),
    "multiprocessing spawn": _program("import multiprocessing as m, sys\ndef f(x): return x, __name__, sys.argv, sys.path, sys.flags\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, range(2)))", "arg"),
    "multiprocessing forkserver": _program("import multiprocessing as m\ndef f(x): return x, __name__\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p: print(p.map(f, range(2)))"),
    "spawn without a guard": _program("import multiprocessing as m\nm.set_start_method('spawn')\np = m.Process(target=print); p.start(); p.join(); print(p.exitcode)"),
    "same interpreter again": _program("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.path, sys.flags)'])"),
    "exec": _program("import os; os.execvp('sh', ['sh', '-c', 'echo $0 $MINE; exit 4'])", env={"MINE": "m"}),
    "warnings": _program("import warnings; warnings.warn('w'); print(warnings.filters); '\\d' is 1"),
    "resource warning": _program("open(__file__); import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())"),
    "buffering": _program("import sys, os; print('a'); os.write(1, b'b\\n'); sys.stderr.write('e'); os.write(2, b'f'); print(sys.stdout.buffer, type(sys.stdout.buffer.raw))"),
    "closed output": _program("import sys; sys.stdout.close()"),
    "closed standard descriptors": _program("import os; os.close(1); print('x')"),
    "surrogates out": _program("print('\\udc80')"),
    "faulthandler": _program("import faulthandler, signal; print(faulthandler.is_enabled(), flush=True); faulthandler.enable(); signal.raise_signal(signal.SIGSEGV)"),
    "dump": _program("import faulthandler; faulthandler.dump_traceback()"),
    "hooks": _program("import sys; print(sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook, sys.gettrace(), sys.getprofile())"),
    "excepthook": _program("import sys; sys.excepthook = lambda *a: print(a[0], a[2].tb_lineno, a[2].tb_next); 1/0"),
    "builtins": _program("import builtins; print(sorted(vars(builtins)), '_' in vars(builtins))"),
    "site": _program("import site; print(site.ENABLE_USER_SITE, site.getusersitepackages(), site.PREFIXES)"),
    "asyncio": _program("import asyncio\nasync def f():\n    await asyncio.sleep(0); print(asyncio.get_running_loop().is_running())\nasyncio.run(f())"),
    "asyncio child": _program("import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('echo', 'hi'); print(await p.wait())\nasyncio.run(f())"),
    "runpy": _program("import runpy; runpy.run_path(__file__, run_name='other') if __name__ == '__main__' else print(__name__)"),
    "reads itself": _program("print(open(__file__).read())"),
    "removes itself": _program("import os; os.remove(__file__); 1/0"),
    "seed": _program("print(hash('a') == hash('a'))", env={"PYTHONHASHSEED": "0"}),
    "hash seed": _program("print(hash('a'))", env={"PYTHONHASHSEED": "0"}),
    "utf8 mode": _program("import sys; print(sys.flags.utf8_mode)", env={"PYTHONUTF8": "1"}),
    "unbuffered": _program("import sys, os; print('a'); os.write(1, b'b\\n')", env={"PYTHONUNBUFFERED": "1"}),
    "warnings on": _program("import warnings; warnings.warn('x', DeprecationWarning)", env={"PYTHONWARNINGS": "error"}),
    "python path": _program("import sys; print(sys.path); import os; print(os.environ['PYTHONPATH'])", env={"PYTHONPATH": "/tmp:/usr"}),
    "python home": _program("import sys; print(sys.prefix)", env={"PYTHONDEVMODE": "1"}),
    "inspect": _program("print(1)", env={"PYTHONINSPECT": "1"}),
    "another home": _program("import os, site; print(os.path.expanduser('~'), site.getuserbase())", env={"HOME": "/tmp"}),
    "time zone": _program("import time; print(time.tzname, time.localtime(0).tm_hour)", env={"TZ": "Asia/Tokyo"}),
    "locale": _program("import sys, locale; print(sys.stdout.encoding, locale.setlocale(locale.LC_CTYPE))", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}),
    "limits": _program("import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28,) * 2); bytearray(1 << 29)"),
}  # fmt: skip
