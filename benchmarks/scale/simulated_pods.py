"""Pods that are entries of a table: one listener speaks TLS and the runner's protocol for all.

Each Pod has an address in 127.0.0.0/8 and its own key, from its Secret, so the daemon connects to
it as to a real one. A command ends at once with status 0, and `--posture` answers as a sandbox that
is closed. Implements `tests.kubernetes.fake_cluster.Node`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import itertools
import json
import os
import ssl
import time
from asyncio import sslproto
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sandkasten_runtime.backends.gate.entry_keys import TOKEN_BYTES, from_data
from sandkasten_runtime.wire.frame_codec import (
    FROM_CLIENT,
    GENERATION,
    Decoder,
    Kind,
    encode,
    encode_chunk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

_READ_BYTES: Final = 64 * 1024
_STDOUT: Final = 1
_HELLO: Final = {
    "generation": GENERATION,
    "version": "simulated",
    "uid": 1000,
    "user_uid": 1000,
    "shell": "/bin/sh",
    "features": ["shell_state", "lease_env"],
}
_CAPABILITIES: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_POSTURE: Final = {
    "status": {
        **dict.fromkeys(_CAPABILITIES, "0"),
        "Uid": "1000 1000 1000 1000",
        "Gid": "1000 1000 1000 1000",
        "Groups": "1000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    },
    "descriptors": [0, 1, 2],
}


@dataclass(slots=True)
class _Pod:
    address: str
    keys: EntryKeys
    context: ssl.SSLContext | None = None


class SimulatedPods:
    """`start_s`: how long a Pod takes until its containers run."""

    def __init__(self, port: int, start_s: float, sample: Mapping[str, Any]) -> None:
        """`sample`: status and managed fields of a real Pod, which give objects their size."""
        self._port = port
        self._start_s = start_s
        self._sample = sample
        self._pods: dict[str, _Pod] = {}
        self._by_address: dict[str, _Pod] = {}
        self._addresses = _addresses()
        self._open: dict[str, set[asyncio.Task[None]]] = {}
        self._server: asyncio.Server | None = None
        self.connections = 0
        """How many were accepted."""

    @property
    def open_connections(self) -> int:
        return sum(map(len, self._open.values()))

    async def listen(self) -> None:
        # The buffer of each connection, which asyncio fills with zeros: this process has the other
        # ends of all replicas' connections.
        sslproto.SSLProtocol.max_size = 16 * 1024
        self._server = await asyncio.start_server(self._serve, "0.0.0.0", self._port, backlog=4096)

    async def start(self, name: str, pod: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
        keys = from_data(secret["data"])
        assert keys is not None
        await asyncio.sleep(self._start_s)
        started = self._pods[name] = _Pod(next(self._addresses), keys)
        self._by_address[started.address] = started
        pod["metadata"]["managedFields"] = self._sample["managedFields"]
        pod["spec"] = {**self._sample["spec"], **pod["spec"]}
        status: dict[str, Any] = self._sample["status"]
        return {**status, "podIP": started.address, "podIPs": [{"ip": started.address}]}

    def copy(self, name: str, copy: str) -> str:
        """Run another Pod with the same keys; return its address."""
        pod = self._pods[name]
        copied = self._pods[copy] = _Pod(next(self._addresses), pod.keys, pod.context)
        self._by_address[copied.address] = copied
        return copied.address

    async def stop(self, name: str) -> None:
        pod = self._pods.pop(name, None)
        if pod is not None:
            del self._by_address[pod.address]
            for task in self._open.pop(pod.address, ()):
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        address = writer.get_extra_info("sockname")[0]
        task = asyncio.current_task()
        assert task is not None
        several = self._open.setdefault(address, set())
        several.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._converse(self._by_address[address], reader, writer)
        except KeyError:
            pass
        finally:
            several.discard(task)
            if not several:
                self._open.pop(address, None)
            writer.transport.abort()

    async def _converse(
        self, pod: _Pod, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if pod.context is None:
            pod.context = _context(pod.keys)
        await writer.start_tls(pod.context)
        token = await reader.readexactly(TOKEN_BYTES)
        if not hmac.compare_digest(token, pod.keys.token):
            return
        writer.write(encode(Kind.HELLO, 0, json.dumps(_HELLO).encode()))
        decoder = Decoder(FROM_CLIENT)
        while data := await reader.read(_READ_BYTES):
            for frame in decoder.feed(data):
                if frame.kind is Kind.OPEN:
                    for kind, body in _answers(json.loads(frame.body)):
                        writer.write(encode(kind, frame.stream, body))
            await writer.drain()


def _answers(request: Mapping[str, Any]) -> Iterator[tuple[Kind, bytes]]:
    verb = request.get("verb")
    fields = request
    result: dict[str, Any] = {}
    if verb == "exec.start":
        if fields.get("follow", True):
            event = {"event": "started", "exec_id": fields["exec_id"], "pid": 7}
            yield Kind.EVENT, json.dumps(event).encode()
        result = _ended(fields)
    elif verb in ("exec.wait", "exec.output"):
        if verb == "exec.output" and fields["exec_id"] == "trial":
            posture = json.dumps(_POSTURE).encode()
            yield Kind.CHUNK, encode_chunk(1, 0, _STDOUT, posture)
        result = _ended(fields)
    elif verb == "exec.list":
        result = {"execs": []}
    elif verb == "shell.list":
        result = {"shells": []}
    yield Kind.RESULT, json.dumps(result).encode()


def _ended(fields: Mapping[str, Any]) -> dict[str, Any]:
    shell = fields.get("shell")
    return {
        "exec_id": fields["exec_id"],
        "kind": "argv" if shell is None else "shell",
        "shell": shell,
        "state": "exited",
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "killed": False,
        "shell_reset": False,
        "cwd": "/workspace",
        "pid": 7,
        "started_ms": int(time.time() * 1000),
        "duration_ms": 1,
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "truncated": False,
        "last_seq": 0,
        "oom_suspect": False,
        "sigsys": False,
    }


def _addresses() -> Iterator[str]:
    for number in itertools.count(1):
        yield f"127.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def _context(keys: EntryKeys) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    pem = ssl.DER_cert_to_PEM_cert(keys.certificate)
    key = base64.encodebytes(keys.key).decode()
    pem += f"-----BEGIN PRIVATE KEY-----\n{key}-----END PRIVATE KEY-----\n"
    # The library reads files only.
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
