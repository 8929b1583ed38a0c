"""Two daemons of one installation: they share a cluster and a database, and nothing else."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import asyncpg

from tests.cluster.load_balancer import LoadBalancer
from tests.daemon.process import DaemonProcess, ask
from tests.kubernetes import cluster_images
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.postgres_server import PostgresServer

_KEY = "sk-0123456789abcdef"
OPERATOR = {"Authorization": f"Bearer {_KEY}"}
# A replica counts as dead after 30 s, and the others sweep every 60 s.
_SWEPT_S = 180.0


@dataclass(frozen=True, slots=True)
class Replicas:
    cluster: Cluster
    server: PostgresServer
    daemons: tuple[DaemonProcess, ...]
    balancer: LoadBalancer
    http: aiohttp.ClientSession
    """Opens a connection for each request, so the balancer chooses a replica for each."""
    installation: str
    database: str
    """Its URL."""

    @property
    def url(self) -> str:
        return self.balancer.url

    def other(self, than: DaemonProcess) -> DaemonProcess:
        return next(one for one in self.daemons if one is not than)

    async def ask(self, at: DaemonProcess, method: str, path: str, body: object = None) -> Any:
        """Return the answer of one replica; fail if it is an error."""
        status, answer = await ask(self.http, method, at.url + path, body)
        assert status < 400, f"{method} {path}: {status} {answer}"
        return answer

    async def create(self, at: DaemonProcess, **fields: object) -> str:
        """Create a session at a replica; return its path."""
        made = await self.ask(at, "POST", "/v1/sessions", fields)
        return f"/v1/sessions/{made['id']}"

    async def run(self, at: DaemonProcess, path: str, command: object) -> str:
        """Run a command of a session at a replica; return its output."""
        return (await self.ask(at, "POST", f"{path}/exec", {"cmd": command}))["stdout"]

    async def objects(self) -> list[str]:
        """Return the Pods and Secrets of the installation."""
        return await asyncio.to_thread(_objects, self.cluster, self.installation)

    async def only(self, *paths: str, within_s: float = PATIENCE_S) -> list[str]:
        """Wait until the installation has the Pods and Secrets of these sessions and no others;
        return the difference that is left.
        """
        names = {one.rpartition("/")[2].replace("_", "-") for one in paths}
        wanted = {f"{kind}/{name}" for kind in ("pods", "secrets") for name in names}
        deadline = time.monotonic() + within_s
        while difference := wanted ^ set(await self.objects()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.2)
        return sorted(difference)


@asynccontextmanager
async def replicas(
    cluster: Cluster, server: PostgresServer, folder: Path, **environ: str
) -> AsyncIterator[Replicas]:
    """Start two daemons and a balancer. Afterwards, destroy all sessions and stop them; fail if a
    Pod or a Secret is left.
    """
    installation = f"test-{secrets.token_hex(4)}"
    database = await _new_database(server, installation.replace("-", "_"))
    settings = {
        "SANDKASTEN_API_KEY": _KEY,
        "SANDKASTEN_BACKEND": "kubernetes",
        "SANDKASTEN_DEFAULT_IMAGE": cluster_images.reference("debian"),
        "SANDKASTEN_KUBERNETES_KUBECONFIG": str(cluster.kubeconfig),
        "SANDKASTEN_KUBERNETES_INSTALLATION": installation,
        "SANDKASTEN_KUBERNETES_RUNNER_IMAGE": cluster_images.reference(
            cluster_images.PROGRAM_IMAGE
        ),
        "SANDKASTEN_KUBERNETES_PULL_POLICY": "Never",
        "SANDKASTEN_KUBERNETES_OVERCOMMIT": "100",
        # No controller of the test cluster enforces a NetworkPolicy.
        "SANDKASTEN_KUBERNETES_NETWORK_POLICY": "assumed",
        "SANDKASTEN_STORE_URL": database,
        **environ,
    }
    async with AsyncExitStack() as stack:
        stack.callback(_check_nothing_left, cluster, installation)
        daemons = []
        for name in ("one", "other"):
            # The same address after a restart: another program must not get it meanwhile.
            listen = ("--listen", f"127.0.0.1:{free_port()}")
            one = DaemonProcess(folder / name, *listen, environ=settings)
            await one.start()
            stack.push_async_callback(one.stop)
            daemons.append(one)
        balancer = await stack.enter_async_context(LoadBalancer(daemons))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                headers=OPERATOR, connector=aiohttp.TCPConnector(force_close=True, limit=0)
            )
        )
        found = Replicas(cluster, server, tuple(daemons), balancer, http, installation, database)
        yield found
        for one in await found.ask(daemons[0], "GET", "/v1/sessions?limit=1000"):
            await found.ask(daemons[0], "DELETE", f"/v1/sessions/{one['id']}")


async def wait_until_empty(pair: Replicas) -> None:
    """Wait until the replicas have removed what a killed one was making: Secrets and Pods. Fail
    with what is known about those that are left.
    """
    deadline = time.monotonic() + _SWEPT_S
    while left := await pair.objects():
        assert time.monotonic() < deadline, "\n".join([*left, *await _told_about(pair, left)])
        await asyncio.sleep(0.5)


async def _told_about(pair: Replicas, left: list[str]) -> list[str]:
    """Return what database, cluster and daemons say of these objects."""
    ids = {one.rpartition("/")[2].replace("-", "_") for one in left}
    connection = await asyncpg.connect(pair.database)
    try:
        found = [
            f"{table}: {dict(row)}"
            for table in ("ledger", "sessions")
            for row in await connection.fetch(f"SELECT * FROM {table} WHERE id = ANY($1)", [*ids])
        ]
        found += [f"shard: {dict(row)}" for row in await connection.fetch("SELECT * FROM shards")]
        locks = "SELECT * FROM pg_locks WHERE locktype = 'advisory'"
        found += [f"lock: {dict(row)}" for row in await connection.fetch(locks)]
    finally:
        await connection.close()
    for daemon in pair.daemons:
        lines = (daemon.said_before + daemon.said).decode(errors="replace").splitlines()
        found += [f"{daemon.url}: {one}" for one in lines if any(the in one for the in ids)]
        found += [f"{daemon.url}: {one}" for one in lines[-30:]]
    return found


async def _new_database(server: PostgresServer, name: str) -> str:
    """Create a database of one test; return its URL."""
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return f"postgresql://tester@/{name}?host={server.place}"


def _objects(cluster: Cluster, installation: str) -> list[str]:
    """Return them from all namespaces."""
    selector = urlencode({"labelSelector": f"sandkasten.owner={installation}"})
    return sorted(
        f"{kind}/{one['metadata']['name']}"
        for kind in ("pods", "secrets")
        for one in cluster.api.ask("GET", f"/api/v1/{kind}?{selector}")["items"]
    )


def _check_nothing_left(cluster: Cluster, installation: str) -> None:
    left = _objects(cluster, installation)
    assert left == [], f"left in the cluster: {left}"
