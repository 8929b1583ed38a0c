"""Networks by rule on a cluster: what the egress process of a Pod decides, and attacks on it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandkasten.errors import IsolationRefused
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.network_limits import NetworkLimits
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkCeiling, NetworkPolicy
from sandkasten_kubernetes.network.networked_cell import NetworkedCell
from tests.cluster import sandbox_backend, sandbox_policy
from tests.cluster.cluster import PORT
from tests.cluster.sandbox_backend import SPEC, output
from tests.cluster.sandbox_policy import PUBLIC, SERVED
from tests.kubernetes import cluster_images

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P111"),
    pytest.mark.usefixtures("enforced", "public"),
]
NAMED = NetworkPolicy(allow=(f"api.test:{SERVED}",))
SPEC = replace(
    SPEC,
    image=Image(cluster_images.reference("debian"), "engine"),
    network=NAMED,
    ceiling=NetworkCeiling(hosts={"api.test": (PUBLIC,), "other.test": (PUBLIC,)}),
)
_ATTACKS = Path(__file__).with_name("network_attacks.py")
# For each argument HOST:PORT, what a connection to it says first.
_TRY = """
import socket, sys
for one in sys.argv[1:]:
    host, port = one.split(":")
    try:
        with socket.create_connection((host, int(port)), 5) as connection:
            said = connection.recv(9).decode() or "end"
    except OSError:
        said = "error"
    print(one, said)
"""


def opened(cluster: Any, place: Path, **changes: Any) -> Any:
    return sandbox_backend.opened(cluster, place, network_rules=True, **changes)


async def reached(cell: Any, *addresses: str) -> list[str]:
    said = await output(cell, "python3", "-c", _TRY, *addresses)
    assert len(said.splitlines()) == len(addresses), said
    return [line.split()[0] for line in said.splitlines() if line.endswith(" tcp")]


async def test_rules_decide_by_name_and_can_be_changed(cluster, tmp_path):
    allowed, other = f"api.test:{SERVED}", f"other.test:{SERVED}"
    near, numeric = f"{cluster.machine.address}:{SERVED}", f"{PUBLIC}:{SERVED}"
    async with opened(cluster, tmp_path) as backend:
        cell = await backend.create(new_sandbox_id(), SPEC)
        assert isinstance(cell, NetworkedCell)
        assert await reached(cell, allowed, other, near, numeric) == [allowed]
        counts = await cell.network_counts()
        assert (counts.opened, counts.bytes_in) == (1, 3)
        assert counts.refused >= 2
        seen = await cell.network_records(0)
        assert [one["seq"] for one in seen] == list(range(1, len(seen) + 1))
        assert {(one["event"], one.get("host")) for one in seen} >= {
            ("opened", "api.test"),
            ("refused", "other.test"),
        }
        assert await cell.network_records(seen[-1]["seq"]) == []
        await cell.change_network(NetworkPolicy(allow=(other,)), ())
        assert await reached(cell, allowed, other) == [other]
        await cell.change_network(CLOSED, ())
        assert await reached(cell, allowed, other, numeric) == []
        # What is not public stays closed, whatever the rules say, unless the operator opens it.
        everything = NetworkPolicy(full=True)
        await cell.change_network(everything, ())
        assert await reached(cell, allowed, numeric, near) == [allowed, numeric]
        # Another process of the installation finds the same.
        found = await backend.attach(cell.id)
        assert (await found.network_counts()).opened == 4


async def test_a_limit_is_enforced(cluster, tmp_path):
    limited = replace(NAMED, limits=NetworkLimits(bytes_in=3))
    # Here by streams of the API server, as where Pods cannot be reached.
    async with opened(cluster, tmp_path, reach="exec") as backend:
        cell = await backend.create(new_sandbox_id(), replace(SPEC, network=limited))
        assert await reached(cell, *[f"api.test:{SERVED}"] * 3) == [f"api.test:{SERVED}"]
        assert (await cell.network_counts()).bytes_in == 3
        seen = await cell.network_records(0)
        assert {one["rule"] for one in seen if one["event"] == "refused"} == {"limit:bytes_in"}


@pytest.mark.parametrize(
    ("network", "through"),
    [(NAMED, []), (NetworkPolicy(full=True), ["public tcp"])],
    ids=["named", "full"],
)
async def test_code_cannot_get_around_the_egress_process(cluster, tmp_path, network, through):
    async with opened(cluster, tmp_path) as backend:
        cell = await backend.create(new_sandbox_id(), replace(SPEC, network=network))
        own = str(cell.address).rpartition(":")[0]
        words = [str(one) for one in (cluster.machine.address, SERVED, PUBLIC, SERVED, own)]
        said = await output(cell, "python3", "-c", _ATTACKS.read_text(), *words)
        assert said.splitlines() == through


async def test_only_the_gate_is_reached_from_outside(cluster, tmp_path):
    listener = "import socket; s = socket.create_server(('', 9000)); print(s.accept()[1])"
    async with opened(cluster, tmp_path) as backend:
        cell = await backend.create(new_sandbox_id(), SPEC)
        own = str(cell.address).rpartition(":")[0]
        accepted = asyncio.ensure_future(output(cell, "python3", "-c", listener))
        for port in (9000, 65053):
            with pytest.raises(OSError):  # noqa: PT011  (refused, or no answer in time)
                async with asyncio.timeout(2):
                    await asyncio.open_connection(own, port)
        knock = f"""
import socket
while True:
    try: socket.create_connection(("{own}", 9000)); break
    except OSError: pass
"""
        await output(cell, "python3", "-c", knock)
        assert own in await accepted


async def test_a_missing_policy_is_noticed_before_any_code_runs(cluster, tmp_path):
    sandbox_policy.remove(cluster, sandbox_policy.FULL)
    try:
        async with opened(cluster, tmp_path) as backend:
            with pytest.raises(IsolationRefused, match=f"{cluster.machine.address}:{PORT}"):
                await backend.create(new_sandbox_id(), SPEC)
            assert list(await backend.owned()) == []
    finally:
        sandbox_policy.apply(cluster, sandbox_policy.FULL)
