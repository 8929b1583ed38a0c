"""The replicas: daemons as processes, on one database and one simulated cluster."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from benchmarks.scale.database_load import DatabaseLoad
from benchmarks.scale.processes import memory_mib, processor_s
from benchmarks.scale.simulated_cluster import SimulatedCluster
from sandkasten.model.ids import new_sandbox_id
from tests.daemon.process import DaemonProcess
from tests.loopback_port import free_port
from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Awaitable, Callable

    from benchmarks.scale.database_load import Load

# How soon a Pod starts is the work of its node: it is fixed, and short.
START_S: Final = 0.5
_KEY: Final = "sk-0123456789abcdef"
_RECOVERED: Final = b"daemon.recovered"
_AT_ONCE_EACH: Final = 20
_MOST_AT_ONCE: Final = 60
_PATIENCE_S: Final = 1200.0
_SLOW_MOTION: Final = Path(__file__).with_name("slow_motion")
_COPIED_AT_ONCE: Final = 1000
_BUSY, _MOST_REFUSED = 503, 1000
_CALM_S, _CALM_TRIES, _CALM_STATEMENTS = 2.0, 30, 4


@dataclass(frozen=True, slots=True)
class Use:
    """What everything has used until now; the difference of two is what it used between them."""

    at: float
    replicas_s: float
    database: Load
    cluster_s: float
    calls: Counter[str]

    def calls_since(self, before: Use) -> dict[str, int]:
        """Return the counts that have changed, and by how much."""
        changes = {name: count - before.calls[name] for name, count in self.calls.items()}
        return {name: change for name, change in changes.items() if change}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work took, all replicas together."""

    work: int
    wall_s: float
    replicas_s: float
    database_s: float
    cluster_s: float
    statements: int
    rows: int
    calls: dict[str, int]
    top_statements: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class Replicas:
    def __init__(
        self, place: Path, cluster: SimulatedCluster, database: DatabaseLoad, config: Path
    ) -> None:
        self.slowness = 1.0
        """How much less often replicas do their periodic work (`slow_motion`)."""
        self._place = place
        self.config = config
        self.cluster = cluster
        self.database = database
        self.daemons: list[DaemonProcess] = []
        self.http: aiohttp.ClientSession
        self.sessions: dict[str, DaemonProcess] = {}
        """The replica that created each session."""
        self.refused = 0
        """Requests that were answered with 503 and repeated."""

    async def grow(self, count: int) -> None:
        """Start replicas until there are this many."""
        while len(self.daemons) < count:
            # One after another: starting takes a second of a processor.
            daemon = self._new(len(self.daemons))
            await daemon.start("--log-level", "info")
            self.daemons.append(daemon)
            await self.recovered(daemon)

    def _new(self, number: int) -> DaemonProcess:
        environ = {"SANDKASTEN_API_KEY": _KEY, "SANDKASTEN_CONFIG": str(self.config)}
        if self.slowness != 1:
            environ["PYTHONPATH"] = str(_SLOW_MOTION)
            environ["SANDKASTEN_SCALE_SLOWNESS"] = str(self.slowness)
        return DaemonProcess(self._place / f"replica-{number}", environ=environ)

    async def recovered(self, daemon: DaemonProcess, limit_s: float = _PATIENCE_S) -> float | None:
        """Wait until a replica has recovered; return the seconds from now, None if it has not."""
        began = time.monotonic()
        while _RECOVERED not in daemon.said:
            if time.monotonic() - began > limit_s:
                return None
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    # ---- work

    async def create(self, count: int) -> int:
        """Create sessions at all replicas, in turns; return how many failed."""
        failed = 0

        async def create_session(number: int) -> None:
            nonlocal failed
            daemon = self.daemons[number % len(self.daemons)]
            status, reply = await self._ask(daemon, "POST", "/v1/sessions", {})
            if status == 201:
                self.sessions[reply["id"]] = daemon
            else:
                failed += 1
                print("create:", status, json.dumps(reply)[:300])

        await self._each(count, create_session)
        return failed

    async def run(self, count: int, at: int | None = None) -> None:
        """Run `true` in sessions, at the replica that has each; with `at`, in those of one."""
        ids = [
            the_id
            for the_id, daemon in self.sessions.items()
            if at is None or daemon is self.daemons[at]
        ]

        async def run_command(number: int) -> None:
            the_id = ids[number % len(ids)]
            body = {"command": ["true"]}
            path = f"/v1/sessions/{the_id}/exec"
            status, reply = await self._ask(self.sessions[the_id], "POST", path, body)
            assert status == 200, reply

        await self._each(count, run_command)

    async def destroy(self, count: int) -> None:
        # The newest, which are connected: copies are not.
        ids = [*self.sessions][-count:]

        async def destroy_session(number: int) -> None:
            daemon = self.sessions.pop(ids[number])
            status, reply = await self._ask(daemon, "DELETE", f"/v1/sessions/{ids[number]}")
            assert status < 300, reply

        await self._each(len(ids), destroy_session)

    async def copy(self, size: int) -> None:
        """Copy the sessions until there are this many, evenly. Ledger and journal have a row of
        each copy, and the cluster a Pod and a Secret; no replica is connected to it.
        """
        olds = [*self.sessions]
        new = [
            (olds[number % len(olds)], str(new_sandbox_id())) for number in range(size - len(olds))
        ]
        await self.cluster.copy(new)
        # In parts, and after each the replicas read the new rows, as if they were created.
        for first in range(0, len(new), _COPIED_AT_ONCE):
            await self.database.copy(new[first : first + _COPIED_AT_ONCE])
            await self.calm()
        self.sessions.update((copy, self.sessions[old]) for old, copy in new)

    async def _each(self, count: int, work: Callable[[int], Awaitable[None]]) -> None:
        numbers = iter(range(count))

        async def take() -> None:
            for number in numbers:
                await work(number)

        at_once = min(_MOST_AT_ONCE, _AT_ONCE_EACH * len(self.daemons))
        await asyncio.gather(*(take() for _ in range(at_once)))

    async def _ask(
        self, daemon: DaemonProcess, method: str, path: str, body: object = None
    ) -> tuple[int, Any]:
        while True:
            async with self.http.request(method, daemon.url + path, json=body) as reply:
                text = await reply.text()
                if reply.status != _BUSY or self.refused > _MOST_REFUSED:
                    return reply.status, json.loads(text) if text else None
            self.refused += 1
            await asyncio.sleep(1.0)

    # ---- what it takes

    async def use(self) -> Use:
        return Use(
            time.monotonic(),
            processor_s(*(daemon.pid for daemon in self.daemons)),
            await self.database.read(),
            processor_s(self.cluster.pid),
            await self.cluster.counts(),
        )

    async def cost(self, work: int, doing: Awaitable[object]) -> Cost:
        before = await self.use()
        await doing
        after = await self.use()
        load = after.database - before.database
        return Cost(
            work,
            round(after.at - before.at, 2),
            round(after.replicas_s - before.replicas_s, 2),
            round(load.processor_s, 2),
            round(after.cluster_s - before.cluster_s, 2),
            load.statements,
            load.all_rows,
            after.calls_since(before),
            {name: count for name, count in load.calls.most_common(10) if count},
        )

    async def calm(self) -> None:
        """Wait until the replicas have noticed what is new."""
        before = (await self.database.read()).statements
        for _ in range(_CALM_TRIES):
            await asyncio.sleep(_CALM_S)
            now = (await self.database.read()).statements
            # Each asks the database a few times a second in any case.
            if now - before < _CALM_STATEMENTS * _CALM_S * len(self.daemons):
                return
            before = now

    async def end(self) -> None:
        """Kill all replicas. Their sandboxes stay."""
        while self.daemons:
            await self.daemons.pop().kill()

    def memory(self) -> list[float]:
        """Return the MiB that each replica has for itself alone."""
        return [round(memory_mib(daemon.pid), 1) for daemon in self.daemons]

    async def restart(self, number: int, limit_s: float) -> dict[str, Any]:
        """Kill a replica and start it again. Its recovery is watched for `limit_s` at most."""
        daemon = self.daemons[number]
        await daemon.kill()
        before = await self.use()
        ready_s = await daemon.start("--log-level", "info")
        recovered_s = await self.recovered(daemon, limit_s)
        used_s = processor_s(daemon.pid)
        after = await self.use()
        return {
            "ready_s": round(ready_s, 2),
            "recovered_s": None if recovered_s is None else round(ready_s + recovered_s, 2),
            "replica_s": round(used_s, 2),
            "memory_mib": round(memory_mib(daemon.pid), 1),
            "connections": after.calls["open connections"] - before.calls["open connections"],
            "gets": after.calls["get pods"] - before.calls["get pods"],
            "statements": (after.database - before.database).statements,
        }


@asynccontextmanager
async def open_replicas(start_s: float = START_S) -> AsyncIterator[Replicas]:
    """Yield a cluster and a database without a replica. Everything is removed at the end.

    `start_s`: how long a Pod takes to start.
    """
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="skscale-", dir="/var/tmp")))
        server = stack.enter_context(PostgresServer(durable=True))
        database = await stack.enter_async_context(DatabaseLoad(server))
        port = free_port()
        cluster = await stack.enter_async_context(SimulatedCluster(place, port, start_s))
        config = place / "sandkasten.yaml"
        config.write_text(json.dumps(_settings(server.url, cluster.kubeconfig, port)))
        replicas = Replicas(place, cluster, database, config)
        replicas.http = await stack.enter_async_context(
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {_KEY}"},
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=_PATIENCE_S),
            )
        )
        try:
            yield replicas
        finally:
            await replicas.end()


def _settings(url: str, kubeconfig: str, port: int) -> dict[str, Any]:
    return {
        "backend": "kubernetes",
        "default_image": "python:3.11-slim",
        # Two processors for everything: a database that is slow is not away.
        "store": {"url": url, "timeout_seconds": 60},
        "session_ttl_seconds": 86_400,
        # A pool of each replica would make Pods of its own.
        "pool": {"oneshot_spares": 0},
        "backends": {
            "kubernetes": {
                "kubeconfig": kubeconfig,
                "namespace": "boxes",
                "installation": "scale",
                "runner_image": "registry.example.org/sandkasten:0.1.0",
                "reach": "direct",
                "port": port,
                "network_policy": "assumed",
            }
        },
    }
