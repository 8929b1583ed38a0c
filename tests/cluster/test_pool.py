"""One-shots and the warm pool with Pods, at two daemons on one cluster and one database."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.replicas import replicas
from tests.kubernetes import cluster_images
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from tests.cluster.replicas import Replicas
    from tests.daemon.process import DaemonProcess

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P94"),
    pytest.mark.timeout(600),
]
READY = 2
"""Pods that each replica keeps ready."""
CLAIMS = 10


@pytest.fixture
async def pair(cluster_with_images, postgres_server, tmp_path):
    kinds = f"{cluster_images.reference('debian')} ready={READY}"
    async with replicas(
        cluster_with_images, postgres_server, tmp_path, SANDKASTEN_POOL_KINDS=kinds
    ) as found:
        yield found


async def _running(pair: Replicas, count: int, within_s: float = FAR_TOO_LATE_S) -> set[str]:
    """Wait until the installation has so many Pods, and all of them run; return their names."""
    deadline = time.monotonic() + within_s
    while True:
        labels = f"sandkasten.owner={pair.installation}"
        pods = await asyncio.to_thread(pair.cluster.api.pods, labels)
        phases = {
            one["metadata"]["name"]: one["status"].get("phase")
            for one in pods
            if "deletionTimestamp" not in one["metadata"]
        }
        if len(phases) == count and set(phases.values()) == {"Running"}:
            return set(phases)
        assert time.monotonic() < deadline, phases
        await asyncio.sleep(0.1)


def _name(session: Any) -> str:
    return str(session["id"]).replace("_", "-")


async def _claimed(pair: Replicas, at: DaemonProcess, **fields: object) -> Any:
    """Create a session at a replica that has a Pod ready."""
    made = await pair.ask(at, "POST", "/v1/sessions", fields)
    assert (made["acquire_source"], made["acquire_detail"]) == ("pool", "")
    return made


async def test_a_session_gets_a_pod_that_is_ready_and_both_replicas_serve_it(pair):
    one, other = pair.daemons
    ready = await _running(pair, 2 * READY)
    # They are not listed as sessions.
    assert await pair.ask(other, "GET", "/v1/sessions") == []
    made = await _claimed(pair, one, env={"GREETING": "hello"}, labels={"n": "1"})
    assert _name(made) in ready
    path = f"/v1/sessions/{made['id']}"
    for at in pair.daemons:
        assert await pair.run(at, path, "echo $GREETING") == "hello\n"
    # Another one takes its place.
    await _running(pair, 2 * READY + 1)
    (listed,) = await pair.ask(other, "GET", "/v1/sessions")
    assert (listed["id"], listed["labels"]) == (made["id"], {"n": "1"})


async def test_sessions_that_are_made_at_both_replicas_at_once_share_no_pod(pair):
    await _running(pair, 2 * READY)
    made = await asyncio.gather(
        *(pair.ask(at, "POST", "/v1/sessions", {}) for at in pair.daemons * 4)
    )
    assert len({session["id"] for session in made}) == len(made)
    assert sum(session["acquire_source"] == "pool" for session in made) >= 2 * READY


async def test_a_claim_is_measured(pair):
    """Prints the times, which the guide quotes; nothing is asserted about them."""
    one, _ = pair.daemons
    times = []
    for number in range(CLAIMS):
        await _running(pair, 2 * READY + number)
        began = time.perf_counter()
        await _claimed(pair, one)
        times.append((time.perf_counter() - began) * 1000)
    told = f"{min(times):.0f} to {max(times):.0f} ms, median {statistics.median(times):.0f} ms"
    sys.stderr.write(f"claims of a Pod that was ready: {told}\n")


async def test_a_one_shot_gets_a_pod_that_is_ready_and_leaves_nothing(pair):
    ready = await _running(pair, 2 * READY)
    for number, at in enumerate(pair.daemons):
        shell = {
            "runtime": "sh",
            "code": f"echo $((40 + {number})); mkdir out; echo made >out/file",
        }
        ran = await pair.ask(at, "POST", "/v1/run", {**shell, "artifacts": ["out/*"]})
        assert (ran["ok"], ran["stdout"]) == (True, f"{40 + number}\n")
        assert ran["acquire_source"] == "pool"
        assert [artifact["path"] for artifact in ran["artifacts"]] == ["out/file"]
        assert str(ran["sandbox_id"]).replace("_", "-") in ready
    failed = {"runtime": "sh", "code": "exit 3"}
    ran = await pair.ask(pair.daemons[0], "POST", "/v1/run", failed)
    assert (ran["ok"], ran["exit_code"]) == (False, 3)
    left = await _running(pair, 2 * READY)
    assert len(left & ready) == 1


async def test_python_that_is_run_again_and_again_finds_its_interpreter_started(pair):
    one, _ = pair.daemons
    await _running(pair, 2 * READY)
    code = {"runtime": "python", "code": "import sys; print(sys.argv[0], 6 * 7)"}
    ran = [await pair.ask(one, "POST", "/v1/run", code) for _ in range(2)]
    # Two requests of a kind: one of it is kept ready for the third.
    await _running(pair, 2 * READY + 1)
    ran.append(await pair.ask(one, "POST", "/v1/run", code))
    assert {told["stdout"] for told in ran} == {"/workspace/main.py 42\n"}
    assert [told["acquire_source"] for told in ran] == ["cold", "cold", "pool"]


async def test_a_replica_that_is_killed_and_started_again_adopts_its_pods(pair):
    one, other = pair.daemons
    ready = await _running(pair, 2 * READY)
    await one.kill()
    await one.start()
    made = [await _claimed(pair, at) for at in (one, one, other, other)]
    assert {_name(session) for session in made} == ready


async def test_the_pods_of_a_replica_that_stays_away_are_removed_by_the_other(pair):
    one, other = pair.daemons
    ready = await _running(pair, 2 * READY)
    await one.kill()
    try:
        kept = await _running(pair, READY, within_s=3 * FAR_TOO_LATE_S)
        assert kept < ready
        made = [await _claimed(pair, other) for _ in range(READY)]
        assert {_name(session) for session in made} == kept
    finally:
        await one.start()
