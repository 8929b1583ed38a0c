"""One Jupyter kernel process and its sockets. Runs in the sandbox, as `kernel_bridge` does.

Kernels listen on Unix sockets, so they need no network. A kernel that cannot (deno) listens on
ports of the sandbox's own loopback interface; the key of its messages is in a file of its user.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any

START_S = 60.0
PORTS = ("shell", "iopub", "stdin", "control", "hb")
LOOPBACK = "127.0.0.1"


class StartFailed(Exception):
    """The kernel ended before it was ready, or was not ready in time."""

    def __init__(self, what: str, *, ended: bool = False) -> None:
        super().__init__(what)
        self.ended = ended


def start_kernel(command: dict[str, Any]) -> Kernel:
    """Start a kernel on Unix sockets; one that cannot use them, on ports."""
    transport = command.get("transport")
    if transport is not None:
        return Kernel(command, transport)
    try:
        return Kernel(command, "ipc")
    except StartFailed as exc:
        if not exc.ended:
            raise
        with suppress(StartFailed):
            return Kernel(command, "tcp")
        raise


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind((LOOPBACK, 0))
    ports = [int(listener.getsockname()[1]) for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


class Kernel:
    """A kernel process and its sockets. `StartFailed` if it does not answer."""

    def __init__(self, command: dict[str, Any], transport: str) -> None:
        self.directory = tempfile.mkdtemp(prefix="kernel-")
        self.key = os.urandom(16).hex().encode()
        self.session = os.urandom(8).hex()
        self.by_message = command.get("interrupt") == "message"
        self.transport = transport
        self.ip = LOOPBACK if transport == "tcp" else os.path.join(self.directory, "k")
        numbers = free_ports(len(PORTS)) if transport == "tcp" else range(1, len(PORTS) + 1)
        self.numbers = {port: numbers[at] for at, port in enumerate(PORTS)}
        connection: dict[str, Any] = {"transport": transport, "ip": self.ip}
        connection.update({port + "_port": number for port, number in self.numbers.items()})
        connection.update({"key": self.key.decode(), "signature_scheme": "hmac-sha256"})
        path = os.path.join(self.directory, "connection.json")
        with open(path, "w") as file:
            json.dump(connection, file)
        env = {**os.environ, **{str(k): str(v) for k, v in (command.get("env") or {}).items()}}
        argv = [word.replace("{connection_file}", path) for word in command["argv"]]
        self.log_path = os.path.join(self.directory, "log")
        self.sockets: dict[str, Any] = {}
        with open(self.log_path, "wb") as log:
            # A separate session, so that an interrupt reaches its children and not this process.
            self.process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._connect()
        except BaseException:
            self.kill()
            raise

    def _connect(self) -> None:
        # While the kernel starts; it takes longer than this import.
        zmq = importlib.import_module("zmq")
        self.zmq, end = zmq, time.monotonic() + START_S
        context = zmq.Context.instance()
        kinds = {"shell": zmq.DEALER, "control": zmq.DEALER, "iopub": zmq.SUB}
        for port, kind in kinds.items():
            address = self._address(port, end)
            peer = self.sockets[port] = context.socket(kind)
            peer.linger = 0
            peer.rcvhwm = 100000
            # A port that has no listener yet is tried again soon.
            peer.reconnect_ivl = 10
            if kind == zmq.SUB:
                peer.subscribe(b"")
            peer.connect(address)
        # A subscription takes effect some time after it is made: ask until a state is published.
        while True:
            self.send("shell", "kernel_info_request", {})
            if self.sockets["iopub"].poll(100):
                return
            self._check_start(end)

    def _address(self, port: str, end: float) -> str:
        """Return the address of a socket, a Unix socket as soon as it exists."""
        number = self.numbers[port]
        if self.transport == "tcp":
            return f"tcp://{self.ip}:{number}"
        while True:
            # Kernels join the path and the number by one or the other.
            for path in (f"{self.ip}-{number}", f"{self.ip}:{number}"):
                if os.path.exists(path):
                    return "ipc://" + path
            self._check_start(end)
            time.sleep(0.004)

    def _check_start(self, end: float) -> None:
        status = self.process.poll()
        if status is not None:
            raise StartFailed(f"the kernel ended with status {status}: {self.log()}", ended=True)
        if time.monotonic() > end:
            raise StartFailed(f"the kernel was not ready after {START_S:g} s: {self.log()}")

    def log(self) -> str:
        try:
            with open(self.log_path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def send(self, port: str, kind: str, content: dict[str, Any]) -> str:
        the_id = os.urandom(8).hex()
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        header = {"msg_id": the_id, "msg_type": kind, "session": self.session, "date": date}
        header.update({"username": "sandkasten", "version": "5.3"})
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        signed = hmac.new(self.key, b"".join(parts), hashlib.sha256).hexdigest().encode()
        self.sockets[port].send_multipart([b"<IDS|MSG>", signed, *parts])
        return the_id

    def execute(self, code: str, *, silent: bool = False) -> str:
        content = {"code": code, "silent": silent, "store_history": not silent}
        content.update({"user_expressions": {}, "allow_stdin": False, "stop_on_error": False})
        return self.send("shell", "execute_request", content)

    def receive(self, port: str) -> dict[str, Any] | None:
        """Return the next waiting message, or None. Invalid messages are skipped."""
        while True:
            try:
                frames = self.sockets[port].recv_multipart(self.zmq.NOBLOCK)
            except self.zmq.Again:
                return None
            try:
                start = frames.index(b"<IDS|MSG>") + 2
                header, parent, _, content = (
                    json.loads(frame) for frame in frames[start : start + 4]
                )
                message = {"type": header["msg_type"], "parent": parent.get("msg_id")}
                return {**message, "content": dict(content)}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue

    def interrupt(self) -> None:
        if self.by_message:
            self.send("control", "interrupt_request", {})
            return
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for connection in self.sockets.values():
            connection.close(0)
        shutil.rmtree(self.directory, ignore_errors=True)
