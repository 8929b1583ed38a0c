"""The program of a code context: runs in the sandbox, between the engine and a Jupyter kernel.

The engine sends this module, and those that it imports, into a sandbox and never imports them.
The arguments are the language and the idle time in seconds. It starts the kernel, reads one JSON
object per line from stdin and writes one per line to stdout. Calls run one after the other. It has
no dependency but pyzmq, which every Python kernel has, and runs on Python 3.8.

At most `WINDOW` bytes are written beyond what the engine has acknowledged, because the runner
keeps only the newest output for a reader that is late. When acknowledgements stop, the engine is
gone: the call is interrupted, and what it printed is dropped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from sandkasten_runtime.engine.code.kernel_process import Kernel, StartFailed, start_kernel
from sandkasten_runtime.engine.code.kernel_specs import (
    JAVA_PRELUDE,
    NoKernel,
    commands,
    environment_code,
    kernel_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 128 * 1024
PART = 32 * 1024
TEXT = 16 * 1024
MAX_VALUES = 400_000  # of one displayed value; the engine takes no more
MAX_WAITING = 16
# Time that code has to end after an interrupt, before its kernel is replaced.
INTERRUPT_S = 10.0
AGAIN_S = 3.0
# Longer than a busy daemon takes to acknowledge output. After this, the engine counts as gone.
STALL_S = 15.0
# How long to wait for the idle message after the reply. A kernel may drop that message.
IDLE_MESSAGE_S = 2.0
TICK_S = 0.2
# Sets the environment variables of one call; with `{}`, restores the values from before.
PYTHON_ENVIRONMENT = (
    "get_ipython().display_formatter.formatters['application/vnd.sandkasten.data+json']"
    ".environment(%s)"
)


class Call:
    """One request of the engine that runs code, or waits for the kernel."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.id = str(request["call"])
        self.code = request.get("code")
        self.env = request.get("env") or {}
        self.deadline = time.monotonic() + float(request.get("timeout_s", 1e9))
        self.room = {
            "stdout": int(request.get("stdout", 0)),
            "stderr": int(request.get("stderr", 0)),
        }
        self.results = int(request.get("results", 0))
        self.message = ""
        self.count: int | None = None
        self.replied: float | None = None
        self.told = False
        self.failure: dict[str, Any] | None = None
        self.truncated = False
        self.why: str | None = None
        self.kill_at: float | None = None
        self.again_at = 0.0


class Bridge:
    def __init__(self, language: str, idle_s: float, sources: dict[str, str]) -> None:
        self.language, self.idle_s = language, idle_s
        self.buffer = b""
        self.waiting: deque[Call] = deque()
        self.current: Call | None = None
        self.lines: deque[bytes] = deque()
        self.unacknowledged = 0
        self.moved_at = self.used_at = time.monotonic()
        self.prelude = sources["kernel_prelude"]
        self.command = kernel_command(language, sources["bash_kernel"])
        self.kernel = self.start()

    def start(self) -> Kernel:
        kernel = start_kernel(self.command)
        prelude = {"python": self.prelude, "java": JAVA_PRELUDE}.get(self.language)
        if prelude is not None:
            kernel.execute(prelude, silent=True)
        return kernel

    def set_environment(self, env: dict[str, str], *, restore: bool = False) -> None:
        """Set variables for one call, or restore those that were set for it."""
        if self.language == "python":
            code = PYTHON_ENVIRONMENT % json.dumps({} if restore else env)
        else:
            before = {name: os.environ.get(name) for name in env}
            code = environment_code(self.language, before if restore else dict(env))
        self.kernel.execute(code, silent=True)

    # ---- the engine's side

    def put(self, call: str, **fields: Any) -> None:
        line = json.dumps({"call": call, **fields})
        if len(line) <= PART:
            self.lines.append(line.encode() + b"\n")
        else:
            for at in range(0, len(line), PART):
                piece = {"call": call, "part": line[at : at + PART], "last": at + PART >= len(line)}
                self.lines.append(json.dumps(piece).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        while self.lines and self.unacknowledged < WINDOW:
            line = self.lines.popleft()
            self.unacknowledged += len(line)
            self.moved_at = time.monotonic()
            while line:
                line = line[os.write(1, line) :]

    def read(self) -> None:
        data = os.read(0, 1 << 20)
        if not data:
            self.end(0)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self.used_at = time.monotonic()
            handler: Callable[[dict[str, Any]], None] = getattr(self, "on_" + request["op"])
            handler(request)

    def on_run(self, request: dict[str, Any]) -> None:
        call = Call(request)
        if len(self.waiting) >= MAX_WAITING:
            self.put(call.id, type="done", status="busy")
            return
        self.waiting.append(call)

    def on_ack(self, request: dict[str, Any]) -> None:
        self.unacknowledged = max(0, self.unacknowledged - int(request["bytes"]))
        self.moved_at = time.monotonic()
        self.flush()

    def on_cancel(self, request: dict[str, Any]) -> None:
        """Interrupt the call, or drop it if it waits; without an id, interrupt the running call."""
        the_id = request.get("call")
        self.waiting = deque(call for call in self.waiting if call.id != the_id)
        if self.current is not None and the_id in (None, self.current.id):
            self.stop("interrupted")

    def on_restart(self, request: dict[str, Any]) -> None:
        # It joins the waiting calls, so that it gets an answer if the new kernel does not start.
        self.waiting.appendleft(Call(request))
        self.replace("restarted")

    # ---- the kernel's side

    def stop(self, why: str) -> None:
        call = self.current
        if call is not None and call.why is None:
            now = time.monotonic()
            call.why, call.kill_at, call.again_at = why, now + INTERRUPT_S, now + AGAIN_S
            self.kernel.interrupt()

    def replace(self, why: str, detail: str = "") -> None:
        """End the kernel and start another one; the call that runs ends too."""
        self.kernel.kill()
        call, self.current = self.current, None
        if call is not None:
            self.done(call, why, restarted=True, detail=detail)
        self.kernel = self.start()

    def done(self, call: Call, status: str, **more: Any) -> None:
        fields = {"count": call.count, "truncated": call.truncated, **more}
        self.put(call.id, type="done", status=status, **fields)
        self.used_at = time.monotonic()

    def advance(self) -> None:
        """Start the next call if none runs, and do what is due."""
        now, call = time.monotonic(), self.current
        while call is None and self.waiting:
            call = self.waiting.popleft()
            if now >= call.deadline:
                self.done(call, "timed_out")
                call = None
            elif call.code is None:
                self.done(call, "ok")
                call = None
            else:
                if call.env:
                    self.set_environment(call.env)
                if not self.lines:
                    # Cancelled callers acknowledge nothing any more.
                    self.unacknowledged = 0
                call.message = self.kernel.execute(call.code)
                self.current = call
        if call is not None:
            if call.replied is not None and now > call.replied + IDLE_MESSAGE_S:
                self.finish(call)
            elif self.kernel.process.poll() is not None:
                status = self.kernel.process.poll()
                self.replace(call.why or "died", f"the kernel ended with status {status}")
            elif call.why is None and now >= call.deadline:
                self.stop("timed_out")
            elif call.kill_at is not None and now >= call.kill_at:
                self.replace(call.why or "interrupted")
            elif call.kill_at is not None and now >= call.again_at:
                call.again_at = now + AGAIN_S
                self.kernel.interrupt()
        elif self.kernel.process.poll() is not None:
            self.replace("died")
        if self.unacknowledged >= WINDOW and now > self.moved_at + STALL_S:
            self.lines.clear()
            self.unacknowledged = 0
            self.stop("interrupted")
        busy = self.current is not None or self.waiting
        if not busy and now > self.used_at + self.idle_s:
            self.end(0)

    def finish(self, call: Call) -> None:
        self.current = None
        if call.failure is not None and call.why is None:
            # A kernel may report an error only in its reply.
            self.error(call, call.failure)
        if call.env:
            self.set_environment(call.env, restore=True)
        self.done(call, call.why or "ok")

    def on_shell(self, message: dict[str, Any]) -> None:
        call = self.current
        if call is None or message["parent"] != call.message:
            return
        if message["type"] == "execute_reply":
            count = message["content"].get("execution_count")
            call.count = count if isinstance(count, int) else None
            call.replied = time.monotonic()
            if message["content"].get("status") == "error" and not call.told:
                call.failure = message["content"]

    def on_iopub(self, message: dict[str, Any]) -> None:
        call, content, kind = self.current, message["content"], message["type"]
        if call is None or message["parent"] != call.message:
            return
        if kind == "stream":
            self.text(call, str(content.get("name")), str(content.get("text", "")))
        elif kind in ("display_data", "update_display_data", "execute_result"):
            self.result(call, content.get("data"), main=self.is_main(kind, content.get("data")))
        elif kind == "error":
            self.error(call, content)
        elif kind == "status" and content.get("execution_state") == "idle":
            shell = self.kernel.sockets["shell"]
            if call.replied is None and shell.poll(int(IDLE_MESSAGE_S * 1e3)):
                self.drain("shell")
            self.finish(call)

    def is_main(self, kind: str, data: Any) -> bool:
        """Return whether a value is that of an expression; R's kernel has no message for these."""
        shown = self.language == "r" and kind == "display_data" and isinstance(data, dict)
        return kind == "execute_result" or (shown and "image/png" not in data)

    def error(self, call: Call, content: dict[str, Any]) -> None:
        call.told, call.failure = True, None
        lines = "\n".join(str(line) for line in content.get("traceback") or ())
        name, value = str(content.get("ename")), str(content.get("evalue"))
        # deno reports a syntax error twice, and no name.
        error = {"name": "Error" if name == value else name[:TEXT], "traceback": lines[-4 * TEXT :]}
        if len(json.dumps([value, error])) > call.results:
            call.truncated, value = True, value[:TEXT]
        self.put(call.id, type="error", value=value, **error)

    def text(self, call: Call, stream: str, text: str) -> None:
        if stream not in call.room:
            return
        raw = text.encode("utf-8", "replace")
        part = raw[: call.room[stream]]
        call.room[stream] -= len(part)
        call.truncated = call.truncated or len(part) < len(raw)
        text = part.decode("utf-8", "ignore")
        for at in range(0, len(text), TEXT):
            self.put(call.id, type="text", stream=stream, text=text[at : at + TEXT])

    def result(self, call: Call, data: Any, *, main: bool) -> None:
        if not isinstance(data, dict):
            return
        size = len(json.dumps(data))
        values = json.dumps([value for value in data.values() if type(value) is not str])
        if size > call.results or sum(map(values.count, ",[{")) >= MAX_VALUES:
            call.truncated = True
            data = {"text/plain": str(data.get("text/plain", ""))[:TEXT]}
            size = len(json.dumps(data))
        if size <= call.results:
            call.results -= size
            self.put(call.id, type="result", data=data, main=main)

    def drain(self, port: str) -> None:
        handler = self.on_shell if port == "shell" else self.on_iopub
        while (message := self.kernel.receive(port)) is not None:
            handler(message)

    # ---- both

    def loop(self) -> None:
        zmq = self.kernel.zmq
        while True:
            self.advance()
            poller = zmq.Poller()
            poller.register(0, zmq.POLLIN)
            for port in ("shell", "iopub"):
                poller.register(self.kernel.sockets[port], zmq.POLLIN)
            ready = dict(poller.poll(int(TICK_S * 1000) if self.current else 5000))
            self.drain("iopub")
            self.drain("shell")
            if 0 in ready:
                self.read()

    def end(self, status: int) -> None:
        self.kernel.kill()
        raise SystemExit(status)


def refuse(status: str, detail: str, waiting: tuple[str, ...] = (), buffer: bytes = b"") -> None:
    """Answer every call with the reason; the engine ends this process."""
    end = time.monotonic() + 30
    calls = list(waiting)
    while True:
        for call in calls:
            answer = {"call": call, "type": "done", "status": status, "detail": detail[:TEXT]}
            os.write(1, json.dumps(answer).encode() + b"\n")
        calls = []
        if time.monotonic() > end:
            return
        if not select.select([0], [], [], 1)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        requests = [json.loads(line) for line in lines]
        calls = [request["call"] for request in requests if request["op"] in ("run", "restart")]


def main(sources: dict[str, str]) -> None:
    # A file of the workspace must not take the place of a module.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    if sys.argv[1] == "--list":
        print(json.dumps(sorted(commands(sources["bash_kernel"]))))  # noqa: T201
        return
    # Not SIG_IGN, which the kernel would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        bridge = Bridge(sys.argv[1], float(sys.argv[2]), sources)
    except NoKernel as exc:
        refuse("no_kernel", str(exc))
    except (StartFailed, OSError) as exc:
        refuse("not_started", str(exc))
    else:
        try:
            bridge.loop()
        except (StartFailed, OSError) as exc:
            waiting = tuple(call.id for call in bridge.waiting)
            refuse("not_started", str(exc), waiting, bridge.buffer)
