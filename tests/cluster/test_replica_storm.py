"""Repeated `kill -9` of a replica, a kubelet or PostgreSQL under load: nothing is lost or left."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.cluster.replicas import Replicas, replicas, wait_until_empty
from tests.daemon.process import DaemonProcess, ask
from tests.daemon.storm import Kept, Storm
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P104"),
]
ROUNDS = int(os.environ.get("SANDKASTEN_STORM_ROUNDS", "50"))


class ReplicaStorm(Storm):
    """Clients use the balancer. After each kill, sessions are asked for at the replicas that live:
    `reached` has the seconds until they answered, by what was killed. For the database they count
    from its return.
    """

    def __init__(self, pair: Replicas, seed: int) -> None:
        super().__init__(pair.daemons[0], pair.http, seed)
        self._pair = pair
        self.asked: Replicas | DaemonProcess = pair
        self.kept: list[Kept] = []
        self.reached: dict[str, list[float]] = defaultdict(list)

    @property
    def url(self) -> str:
        return self.asked.url

    async def _kill(self, kills: int) -> None:
        pair = self._pair
        for _ in range(kills):
            await self._loaded()
            what = self._random.choice(("replica", "replica", "kubelet", "postgres"))
            began = time.monotonic()
            if what == "replica":
                victim = self._random.choice(pair.daemons)
                await victim.kill()
                await self._reach(what, began, [pair.other(victim)])
                await victim.start()
            elif what == "kubelet":
                node = self._random.choice(pair.cluster.nodes)
                await asyncio.to_thread(node.kill_kubelet)
                await self._reach(what, began, pair.daemons)
                await asyncio.to_thread(node.start_kubelet)
            else:
                await asyncio.to_thread(pair.server.kill)
                await asyncio.to_thread(pair.server.start)
                await self._reach(what, time.monotonic(), pair.daemons)
            self.report.kills += 1
            self.report.recovery_s.append(time.monotonic() - began)

    async def _loaded(self) -> None:
        """Wait until clients have got answers since the last kill, and sessions come and go."""
        report = self.report
        enough, made, gone = report.acknowledged + 10, len(report.created), len(report.destroyed)
        async with asyncio.timeout(PATIENCE_S):
            while (  # noqa: ASYNC110  (clients add to it)
                report.acknowledged < enough
                or len(report.created) <= made
                or len(report.destroyed) <= gone
            ):
                await asyncio.sleep(self._random.uniform(0.05, 0.3))

    async def _reach(self, what: str, began: float, at: Sequence[DaemonProcess]) -> None:
        """Ask each of these replicas for each kept session until all have answered."""

        async def one(url: str) -> None:
            answer: object = None
            while time.monotonic() < began + PATIENCE_S:
                status, answer = await ask(
                    self.http, "POST", url, {"cmd": ["true"], "timeout_ms": 30_000}
                )
                if status == 200:
                    self.reached[what].append(time.monotonic() - began)
                    return
                await asyncio.sleep(0.02)
            self.report.unexpected.append(f"{url} after the kill of {what}: {answer}")

        urls = [f"{daemon.url}/v1/sessions/{kept.id}/exec" for daemon in at for kept in self.kept]
        await asyncio.gather(*map(one, urls))

    def __str__(self) -> str:
        lines = [str(self.report)]
        lines += [
            f"after the kill of {what}: {len(times)} sessions reached, at most {max(times):.2f} s"
            for what, times in sorted(self.reached.items())
        ]
        return "\n".join(lines)


@pytest.mark.timeout(3600)
async def test_nothing_acknowledged_is_lost_in_a_storm_of_kills(
    cluster_with_images, postgres_server, tmp_path, capsys
):
    async with replicas(cluster_with_images, postgres_server, tmp_path) as pair:
        storm = ReplicaStorm(pair, seed=int(os.environ.get("SANDKASTEN_SEED", "7")))
        storm.kept = kept = await storm.prepared(4)
        await storm.blow(kept, ROUNDS, workers=4)
        with capsys.disabled():
            sys.stdout.write(f"\n{storm}\n")
        for at in pair.daemons:
            storm.asked = at
            assert await storm.check(kept) == []
        # What was made for a request that died is a session like any other.
        listed = await pair.ask(pair.daemons[0], "GET", "/v1/sessions?status=running&limit=1000")
        kept_ids = {one.id for one in kept}
        for one in listed:
            if one["id"] not in kept_ids:
                await pair.ask(pair.daemons[1], "DELETE", f"/v1/sessions/{one['id']}")
        for one in kept:
            await pair.ask(pair.daemons[1], "DELETE", f"/v1/sessions/{one.id}")
        await wait_until_empty(pair)
        with capsys.disabled():
            sys.stdout.write(
                f"{len(storm.report.created)} sessions created and "
                f"{len(storm.report.destroyed)} destroyed, "
                f"{sum(len(one.writes) for one in kept)} writes kept, "
                f"{len(listed) - len(kept)} sessions of requests that died\n"
            )
