"""`python -m benchmarks.scale`: 10,000 sessions and 20 replicas on a simulated cluster.

The daemons, PostgreSQL and the way to a sandbox (TLS, the runner's protocol) are real. The API
server is the fake one of the tests, with the times of `api_rates.json`, which
`benchmarks.scale.api_rates` measures on a real cluster. `--quick` takes 200 sessions and 3
replicas. Prints each cost as it is measured, and writes all of them to the file of `--json`;
`docs/benchmarks/scale/README.md` is written by hand from several runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks.scale import periodic_work
from benchmarks.scale.replicas import Replicas, open_replicas

if TYPE_CHECKING:
    from benchmarks.scale.replicas import Cost

_SHARES: Final = 20


@dataclass(frozen=True, slots=True)
class Plan:
    sessions: tuple[int, ...] = (1000, 10_000)
    replicas: tuple[int, ...] = (1, 5, 20)
    creates: int = 200
    """Sessions of a burst that measures the rate."""
    execs: int = 400
    destroys: int = 100
    idle_s: float = 60.0
    limit_s: float = 90.0
    """For a recovery, and for each part of the periodic work: what is not done by then is counted
    as far as it got."""


QUICK: Final = Plan((200,), (1, 3), creates=20, execs=20, destroys=10, idle_s=2.0)


async def measure(replicas: Replicas, plan: Plan) -> dict[str, Any]:
    result: dict[str, Any] = {"rates": {}, "sizes": {}}
    for count in plan.replicas:
        await replicas.grow(count)
        # The first create of a replica is preceded by a self-test.
        await replicas.create(count)
        cost = await replicas.cost(plan.creates, replicas.create(plan.creates))
        result["rates"][str(count)] = _told(f"burst at {count} replicas", cost)
        await replicas.destroy(len(replicas.sessions))
    result["sizes"]["0"] = await _size(replicas, plan)
    await replicas.create(len(replicas.daemons))
    for size in plan.sessions:
        # Copied, because creating as many takes an hour of two processors.
        await replicas.copy(size)
        # One replica is connected to a twentieth, as if twenty had created them.
        share = size // _SHARES
        cost = await replicas.cost(share, replicas.run(share, at=0))
        connect = _told(f"{size} sessions noticed, one share connected", cost)
        await replicas.calm()
        result["sizes"][str(size)] = {"connect": connect, **await _size(replicas, plan)}
    result["restart"] = await replicas.restart(-1, plan.limit_s)
    _say(f"restart: {result['restart']}")
    result["refused"] = replicas.refused
    await replicas.end()
    with TemporaryDirectory(prefix="skscale-", dir="/var/tmp") as place:
        result["periodic"] = await periodic_work.measure(replicas, Path(place), plan.limit_s)
    for name, periodic in result["periodic"].items():
        _say(f"{name}: {periodic}")
    return result


async def _size(replicas: Replicas, plan: Plan) -> dict[str, Any]:
    """Measure with the sessions that there are."""
    result: dict[str, Any] = {"memory_mib": replicas.memory()}
    result["connections"] = await replicas.database.connections()
    _say(f"memory {result['memory_mib']}, connections {result['connections']}")
    result["idle"] = _told("idle", await replicas.cost(0, asyncio.sleep(plan.idle_s)))
    if replicas.sessions:
        share = min(plan.execs, len(replicas.sessions) // _SHARES)
        result["exec"] = _told("exec", await replicas.cost(share, replicas.run(share, at=0)))
        count = plan.destroys
        result["create"] = _told("create", await replicas.cost(count, replicas.create(count)))
        result["destroy"] = _told("destroy", await replicas.cost(count, replicas.destroy(count)))
    return result


def _told(what: str, cost: Cost) -> dict[str, Any]:
    fields = cost.to_json()
    _say(f"{what}: {fields}")
    return fields


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:4.1f}  {what}", flush=True)


async def _main(plan: Plan, slowness: float) -> dict[str, Any]:
    async with open_replicas() as replicas:
        replicas.slowness = slowness
        return await measure(replicas, plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sessions", type=int, nargs="+")
    parser.add_argument("--replicas", type=int, nargs="+")
    parser.add_argument("--creates", type=int, help="sessions of a burst")
    parser.add_argument("--slow", type=float, default=1.0, help="slow motion of periodic work")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    base = QUICK if words.quick else Plan()
    plan = replace(
        base,
        sessions=tuple(words.sessions or base.sessions),
        replicas=tuple(words.replicas or base.replicas),
        creates=words.creates or base.creates,
        destroys=min(base.destroys, words.creates or base.destroys),
    )
    # Ten thousand sessions are as many connections at both ends.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    result = asyncio.run(_main(plan, words.slow))
    if words.json:
        words.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
