"""A real sandbox as a synchronous object, for hostile tests.

Uses the same two layers as the engine (backend, channel) and nothing above, so that the isolation
and the runner themselves are attacked. Has its own event loop in a thread. Every wait has a
deadline; a test that reaches one fails with what it was waiting for.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten_kubernetes import pod_names
from sandkasten_runtime.linux.confinement import capabilities, id_ranges, posture
from sandkasten_runtime.wire.call import Data, OutputChunk
from sandkasten_runtime.wire.channel import Channel
from sandkasten_runtime.wire.messages import (
    ExecReply,
    FileStat,
    ProcessInfo,
    decode_entry,
    decode_exec,
    decode_page,
    decode_processes,
    decode_shells,
    to_bytes_json,
)
from tests.engines import seen as engines
from tests.kubernetes import pods_seen
from tests.patience import PATIENCE_S
from tests.platform_choice import GROUNDS, Ground, engine_of, spec_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.limits import Limits
    from sandkasten_runtime.backends.launched_sandboxes import LaunchedCell
    from sandkasten_runtime.backends.local.backend import LocalBackend

T = TypeVar("T")

ROOT = os.geteuid() == 0
LONG = os.environ.get("TEST_SANDKASTEN_LONG") == "1"
PYTHON = "/usr/bin/python3"
PROBES = Path(__file__).with_name("probes")
# Longer than any deadline inside, so that the inner one is what is seen.
OUTER_S = 100.0
# Reasons for not asking something of a ground.
OWN_KERNEL = "gVisor answers system calls itself; none reaches the kernel of the host"
OWN_PROCESSES = "what runs inside gVisor is no process of the host; its own processes are examined"
OWN_PROC = "/proc, /dev and /sys are gVisor's own and tell nothing of the host"
ROOT_INSIDE = "the dev profile gives root inside and a root that can be written to"
HOST_IMAGE = "an image brings its own files"
ENGINE_SAYS = "the engine says what is alive, and no file of ours"
AS_IT_IS = "an image of the engine's own is shown as it is, without our users and links"
VOLUME_NAMES = "an engine's volume is named after its session, and mountinfo shows where it lies"
NAMED = "a command that is named by its test would be found again by the next one"
NO_SIZES = "an engine limits the size of no volume; probe says so"
ONE_USER = "an engine that maps no ids runs all sandboxes as one user, whose counts they share"
ITS_TERMINALS = "an engine mounts terminals itself, and limits their number for all together"
CLUSTER_SAYS = "the API server says what is alive, and no file of ours"
ITS_VOLUMES = "mountinfo shows where the node keeps the volumes of a Pod"
EVICTED = "the node ends a Pod whose workspace is too large"
POD_PIDS = "the limit of processes is the kubelet's, and the same for every Pod"
POD_MEMORY = "a Pod that uses too much memory may be lost as a whole"
POD_SOCKETS = "with version 1 of cgroups, a kubelet does not limit the buffers of sockets"
POD_NETWORK = "a Pod has a network, which a NetworkPolicy closes"
ITS_MASKS = "the container runtime of the node decides which entries of /proc are hidden"
ITS_MOUNTS = "the container runtime of the node shows /sys and cgroups, read-only"
ITS_CGROUPS = "with version 1 of cgroups, a container sees the path of its own"
UNSIZED = ("docker/volume", "docker/shared", "docker/inside", "docker/remote")
WHOLE_SANDBOX = "at a limit of the host gVisor ends as a whole, with all that runs in it"
# What one answer may hold on our side; the count of bytes goes on beyond it.
KEPT_BYTES = 16 * 1024 * 1024


def sized(small: int, full: int) -> int:
    """Return a number in its everyday size, or in full."""
    return full if LONG else small


class Loop:
    """An event loop in a thread; `run` blocks for a coroutine's result."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = OUTER_S) -> T:
        return asyncio.run_coroutine_threadsafe(
            asyncio.wait_for(work, timeout_s), self._loop
        ).result(timeout_s + 5)

    def background(self, work: Coroutine[Any, Any, T]) -> Any:
        """Return a future; its `result(timeout)` blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@dataclass(slots=True)
class Answer:
    """The result of one command, and its output as it was streamed."""

    reply: ExecReply
    stdout: bytes = b""
    stderr: bytes = b""
    streamed: dict[int, int] = field(default_factory=dict)

    @property
    def code(self) -> int | None:
        return self.reply.exit_code

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")

    @property
    def reset(self) -> bool:
        return self.reply.shell_reset


def paced(count: int, ground: Ground) -> int:
    """Return how often to repeat something; a kernel in user space is slower."""
    return count // 10 if ground.backend == "gvisor" else count


def poll(what: str, check: Callable[[], object]) -> None:
    """Poll until `check` returns a falsy value (nothing is left); fail with the last value."""
    deadline = time.monotonic() + PATIENCE_S
    while seen := check():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: still there after {PATIENCE_S:g} s: {seen}")
        time.sleep(0.02)


class Box:
    """One sandbox. `host_pid` is its first process as the host sees it."""

    def __init__(
        self,
        loop: Loop,
        backend: LocalBackend,
        data_dir: Path,
        limits: Limits,
        spec: CellSpec | None = None,
        ground: Ground = GROUNDS["local"],
        made: SandboxId | None = None,
    ) -> None:
        """`made`: the sandbox already exists and is only attached."""
        self.loop = loop
        self.ground = ground
        self.backend = backend
        self.data_dir = data_dir
        self.id: SandboxId = made or new_sandbox_id()
        self.limits = limits
        self.cell: LaunchedCell = loop.run(
            backend.create(self.id, replace(spec or spec_on(ground), limits=limits))
            if made is None
            else backend.attach(self.id)
        )
        self.channel: Channel = loop.run(self._dial())
        self.state: dict[str, Any]
        if self.docker:
            self.host_pid = engines.first_process(engine_of(ground), self.id)
            self.host_start = int(_stat(str(self.host_pid))[19])
            self.state = {"slot": None, "cgroups": engines.cgroups(self.host_pid)}
        elif self.kubernetes:
            self.host_pid = pods_seen.first_process(self.id)
            self.host_start = int(_stat(str(self.host_pid))[19])
            self.state = {"slot": None, "cgroups": engines.cgroups(self.host_pid)}
        else:
            self.host_pid, self.host_start = map(int, (self.directory / "pid").read_text().split())
            self.state = json.loads((self.directory / "state").read_text())
        # gVisor's processes are in the host's; what runs inside is no process of the host at all.
        own = None if self.gvisor else os.readlink(f"/proc/{self.host_pid}/ns/pid")
        self.pid_namespace = own
        self.destroyed = False
        self.ended_at = float("inf")

    async def _dial(self) -> Channel:
        return await Channel.open(await self.cell.dial())

    @property
    def directory(self) -> Path:
        top = self.data_dir if self.ground.backend == "local" else self.data_dir / self.backend.name
        return top / "cells" / self.id

    @property
    def gvisor(self) -> bool:
        return self.ground.backend == "gvisor"

    @property
    def docker(self) -> bool:
        return self.ground.backend == "docker"

    @property
    def kubernetes(self) -> bool:
        return self.ground.backend == "kubernetes"

    @property
    def container(self) -> bool:
        """Return whether a container runtime made it, which says how some things are mounted."""
        return self.docker or self.kubernetes

    @property
    def runner_is_another_user(self) -> bool:
        return ROOT and not self.kubernetes

    @property
    def uid(self) -> int:
        """Return the uid of the user's code inside."""
        return 0 if self.dev else 1000

    @property
    def dev(self) -> bool:
        return self.ground.profile == "dev"

    @property
    def host_ids(self) -> range | None:
        slot = self.state["slot"]
        if slot is None:
            return None
        base = id_ranges.base_of(slot)
        return range(base, base + id_ranges.COUNT)

    @property
    def common_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces that it shares with others, or with the host."""
        if self.gvisor:
            # Its own processes are the host's.
            return ("pid", "cgroup")
        # An engine or a node that maps no ids has the host's user namespace. A node makes one for
        # cgroups with their version 2 only.
        return ("user",) if self.docker else ("user", "cgroup") if self.kubernetes else ()

    def host_processes(self) -> list[int]:
        """Return host pids of everything inside, also the first process, or of gVisor."""
        return self._living() if self.gvisor else posture.processes_in(self.host_pid)

    def deviations(self, pid: int) -> list[str]:
        """Return how a process is less isolated than specified, seen from the host."""
        seen, host = posture.read(pid), posture.read(os.getpid())
        if self.gvisor:
            assert self.host_ids is not None
            return posture.kernel_deviations(seen, host, ids=self.host_ids)
        mine = capabilities.bits(capabilities.DEV_USER) if self.dev else 0
        if self.container:
            bare = replace(seen, mountinfo="")
            found = posture.deviations(bare, host, ids=self.host_ids, capabilities=mine)
            known = [f"the {name} namespace is the host's" for name in self.common_namespaces]
            found = [one for one in found if one not in known]
            return found + self.mount_deviations(seen.mountinfo)
        return posture.deviations(
            seen, host, ids=self.host_ids, capabilities=mine, writable=self.writable
        )

    def mount_deviations(self, mountinfo: str) -> list[str]:
        if self.docker:
            return engines.mount_deviations(mountinfo)
        if self.kubernetes:
            return pods_seen.mount_deviations(mountinfo)
        return posture.mount_deviations(mountinfo, self.writable)

    @property
    def runner(self) -> str:
        """Return the path of the runner inside."""
        if self.kubernetes:
            return pod_names.RUNNER_PATH
        return "/run/sandkasten/bin/runner" if self.docker else "/run/sandkasten/runner"

    @property
    def identities(self) -> set[int] | None:
        """Return the allowed host ids of its processes; None where they are our own."""
        if self.docker:
            return {1000, 999}
        if self.kubernetes:
            return {1000}
        return None if self.host_ids is None else set(self.host_ids)

    @property
    def writable(self) -> tuple[str, ...]:
        """Return the mounts that may be writable beyond the usual ones."""
        if self.dev:
            return ("/", "/run")
        return ("/run",) if self.ground.backend == "oci" else ()

    def usage(self) -> Any:
        if self.kubernetes:
            # What a Pod uses is counted on its node, which is this machine.
            return pods_seen.usage(self.state["cgroups"])
        return self.loop.run(self.cell.usage())

    # ---- commands

    def fields(
        self,
        cmd: str | bytes | Sequence[str | bytes],
        *,
        exec_id: str | None = None,
        timeout_s: float = PATIENCE_S,
        grace_s: float = 1.0,
        env: Mapping[str, str] | None = None,
        cwd: str | bytes | None = None,
        stdin: bytes | None = None,
        shell: str = "default",
        pty: bool = False,
        cap: int | None = None,
        key: str | None = None,
        follow: bool = True,
    ) -> dict[str, object]:
        fields: dict[str, object] = {
            "exec_id": exec_id or "t-" + secrets.token_hex(8),
            "deadline_ms": int(timeout_s * 1000),
            "grace_ms": int(grace_s * 1000),
            "follow": follow,
        }
        if isinstance(cmd, str | bytes):
            fields |= {"shell": shell, "command": to_bytes_json(cmd)}
        else:
            fields["argv"] = [to_bytes_json(word) for word in cmd]
        if env is not None:
            fields["env"] = {name: to_bytes_json(value) for name, value in env.items()}
        if cwd is not None:
            fields["cwd"] = to_bytes_json(cwd)
        if stdin is not None:
            fields["stdin"] = "stream"
        if pty:
            fields["pty"] = {"rows": 24, "cols": 80}
        if cap is not None:
            fields |= {"stdout_cap": cap, "stderr_cap": cap}
        if key is not None:
            fields["key"] = key
        return fields

    async def aexec(self, cmd: str | bytes | Sequence[str | bytes], **options: Any) -> Answer:
        stdin: bytes | None = options.get("stdin")
        return await self._follow("exec.start", self.fields(cmd, **options), stdin)

    async def _follow(
        self, verb: str, fields: dict[str, object], stdin: bytes | None = None
    ) -> Answer:
        kept: dict[int, bytearray] = {0: bytearray(), 1: bytearray(), 2: bytearray()}
        streamed = dict.fromkeys(kept, 0)
        async with self.channel.stream(verb, fields) as call:
            if stdin is not None:
                await call.send(stdin)
                await call.end()
            async for item in call:
                if isinstance(item, OutputChunk):
                    streamed[item.source] += len(item.data)
                    if len(kept[item.source]) < KEPT_BYTES:
                        kept[item.source] += item.data
            reply = decode_exec(await call.result())
        return Answer(reply, bytes(kept[0] + kept[1]), bytes(kept[2]), streamed)

    def exec(self, cmd: str | bytes | Sequence[str | bytes], **options: Any) -> Answer:
        """Run a command: a list is a new process, a string goes to the persistent shell."""
        outer_s = max(OUTER_S, options.get("timeout_s", 0) + 20)
        return self.loop.run(self.aexec(cmd, **options), outer_s)

    def begin(self, cmd: str | bytes | Sequence[str | bytes], **options: Any) -> Any:
        """Run a command in the background; return a future of its Answer."""
        return self.loop.background(self.aexec(cmd, **options))

    def start(self, cmd: str | bytes | Sequence[str | bytes], **options: Any) -> str:
        """Start a command without following it; return its exec id."""
        fields = self.fields(cmd, follow=False, **options)
        self.loop.run(self.channel.call("exec.start", fields))
        return str(fields["exec_id"])

    def kept(self, exec_id: str) -> Answer:
        """Return what the runner still keeps of a command's output."""
        return self.loop.run(self._follow("exec.output", {"exec_id": exec_id}))

    def wait(self, exec_id: str, timeout_s: float = PATIENCE_S) -> ExecReply:
        fields = {"exec_id": exec_id, "timeout_ms": int(timeout_s * 1000)}
        return decode_exec(self.loop.run(self.channel.call("exec.wait", fields)))

    def call(self, verb: str, /, **fields: object) -> dict[str, Any]:
        return self.loop.run(self.channel.call(verb, fields))

    def python(self, code: str, *arguments: str, **options: Any) -> Any:
        """Run Python inside as a new process; return its last output as JSON."""
        answer = self.exec([PYTHON, "-I", "-c", code, *arguments], **options)
        assert answer.code == 0, (answer.reply, answer.stdout[-2000:], answer.stderr[-2000:])
        return json.loads(answer.stdout.splitlines()[-1])

    def probe(self, name: str, *arguments: str, **options: Any) -> Any:
        """Run a program of probes/ inside; return its answer."""
        return self.python((PROBES / f"{name}.py").read_text(), *arguments, **options)

    def processes(self) -> tuple[ProcessInfo, ...]:
        return decode_processes(self.call("proc.list")).processes

    def shell_pid(self, name: str = "default") -> int | None:
        shells = decode_shells(self.call("shell.list"))
        return next((shell.pid for shell in shells if shell.name == name), None)

    # ---- files

    def read(self, path: str | bytes, **fields: object) -> bytes:
        return self.loop.run(self._read({"path": to_bytes_json(path), **fields}))

    async def _read(self, fields: dict[str, object], verb: str = "fs.read") -> bytes:
        got = bytearray()
        async with self.channel.stream(verb, fields) as call:
            async for item in call:
                if isinstance(item, Data):
                    got += item.data
            await call.result()
        return bytes(got)

    def write(self, path: str | bytes, data: bytes, **fields: object) -> FileStat:
        asked = {"path": to_bytes_json(path), **fields}
        return decode_entry(self.loop.run(self.channel.call("fs.write", asked, data=data)))

    def stat(self, path: str | bytes, **fields: object) -> FileStat:
        return decode_entry(self.call("fs.stat", path=to_bytes_json(path), **fields))

    def entries(self, path: str | bytes, *, limit: int = 1000, **fields: object) -> list[FileStat]:
        """Return all pages of a listing."""
        found: list[FileStat] = []
        cursor: str | None = None
        while True:
            asked: dict[str, object] = {"path": to_bytes_json(path), "limit": limit, **fields}
            if cursor is not None:
                asked["cursor"] = to_bytes_json(cursor)
            page = decode_page(self.call("fs.list", **asked))
            assert len(page.entries) <= limit
            found += page.entries
            cursor = page.next
            if cursor is None:
                return found

    def mkdir(self, path: str | bytes, **fields: object) -> FileStat:
        return decode_entry(self.call("fs.mkdir", path=to_bytes_json(path), **fields))

    def move(self, source: str | bytes, destination: str | bytes, **fields: object) -> FileStat:
        asked = {"source": to_bytes_json(source), "destination": to_bytes_json(destination)}
        return decode_entry(self.call("fs.move", **asked, **fields))

    def remove(self, path: str | bytes, **fields: object) -> int:
        return int(self.call("fs.remove", path=to_bytes_json(path), **fields)["removed"])

    def tar_in(self, path: str, data: bytes, **fields: object) -> dict[str, Any]:
        asked = {"path": to_bytes_json(path), **fields}
        return self.loop.run(self.channel.call("fs.tar_in", asked, data=data))

    def tar_out(self, path: str, **fields: object) -> bytes:
        return self.loop.run(self._read({"path": to_bytes_json(path), **fields}, "fs.tar_out"))

    # ---- what must hold afterwards

    def answers(self) -> None:
        """Check that both ways of running a command still work at once."""
        answer = self.exec(["echo", "ok"])
        assert (answer.stdout, answer.code) == (b"ok\n", 0), answer

    def destroy(self) -> None:
        self.destroyed = True
        self.ended_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.loop.run(self.channel.aclose())
        self.loop.run(self.cell.destroy())

    def leave(self) -> None:
        """Leave the removal of the sandbox to another owner."""
        self.ended_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.loop.run(self.channel.aclose())

    def leftovers(self) -> list[str]:
        """Return everything of this sandbox that is still on the host; call it after `destroy`."""
        found = [f"process {pid}" for pid in self._living()]
        found += [f"cgroup {d}" for d in self.state["cgroups"] if os.path.exists(d)]
        if self.directory.exists():
            found.append(f"files in {self.directory}")
        if self.docker:
            found += engines.things(engine_of(self.ground), self.id)
        if self.kubernetes:
            found += pods_seen.things(self.id)
        if ROOT and id_ranges.slot_of(id_ranges.HOST_DIRECTORY, self.id) is not None:
            found.append("a lease of an id range")
        backing = os.fspath(self.directory)
        for device in Path("/sys/block").glob("loop*/loop/backing_file"):
            try:
                if backing in device.read_text():
                    found.append(f"loop device {device.parts[3]}")
            except OSError:
                continue
        tables = ("/proc/self/mountinfo", "/proc/net/unix")
        return found + [f"an entry in {t}" for t in tables if self.id in Path(t).read_text()]

    def _living(self) -> list[int]:
        ids = self.host_ids
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                status = Path(f"/proc/{name}/status").read_text(errors="replace")
                if re.search(r"^State:\s+[ZX]", status, re.MULTILINE):
                    continue
                uid = int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE).group(1))  # type: ignore[union-attr]
                own = self.pid_namespace
                inside = own is not None and os.readlink(f"/proc/{name}/ns/pid") == own
                # The kernel gives a dead namespace's number to the next one, and we the id range.
                if _began(name) > self.ended_at:
                    continue
            except OSError:
                continue
            if inside or (ids is not None and uid in ids):
                found.append(int(name))
        return found


def _stat(pid: str) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _began(pid: str) -> float:
    """Return when a process started, in seconds since boot."""
    return int(_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
