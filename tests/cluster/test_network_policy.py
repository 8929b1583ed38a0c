"""A controller enforces the NetworkPolicies of the guide, and no code runs before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import IsolationRefused
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_kubernetes import pod_names
from sandkasten_kubernetes.tenant_namespaces import TenantNamespaces
from sandkasten_runtime.assembly.backend_registry import read_nested
from tests.cluster import sandbox_backend, sandbox_policy
from tests.cluster.cluster import PORT, Cluster
from tests.cluster.kube_api import KubeApi, path_of, wait_for
from tests.cluster.sandbox_backend import SPEC, output
from tests.cluster.sandbox_policy import SERVED
from tests.kubernetes import cluster_images
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P107"),
    pytest.mark.usefixtures("enforced"),
]

KUBELET, GATE = 10250, 8484
FULL = replace(SPEC, network=NetworkPolicy(full=True))
WITH_PYTHON = replace(FULL, image=Image(cluster_images.reference("debian"), "engine"))
# For each argument ADDRESS:PORT, whether it answers.
_TRY = """
for one in "$@"; do
    if nc -w 2 "${one%:*}" "${one##*:}" </dev/null >/dev/null 2>&1; then echo "open $one"
    else echo "closed $one"; fi
done
"""
_ATTACKS = Path(__file__).with_name("network_attacks.py")
# Print who connects, until one says stop.
_LISTENER = """
import socket
server = socket.create_server(("", 9000))
said = b""
while said != b"stop":
    client, peer = server.accept()
    print(peer[0], flush=True)
    said = client.recv(99)
"""
_KNOCK = """
import socket, sys
while True:
    try:
        socket.create_connection((sys.argv[1], 9000)).sendall(sys.argv[2].encode())
        break
    except ConnectionRefusedError:
        pass
"""


def _addresses(*found: tuple[str, int]) -> list[str]:
    return [f"{host}:{port}" for host, port in found]


def _everything(cluster: Cluster, bystanders: list[Any], cells: Sequence[Any]) -> list[str]:
    """Return what belongs to the cluster."""
    return _addresses(
        (cluster.machine.address, PORT),
        *((one["status"]["podIP"], SERVED) for one in bystanders),
        *((node.address, KUBELET) for node in cluster.nodes),
        *((_host(one), GATE) for one in cells),
        ("169.254.169.254", 80),
        ("10.96.0.1", 443),
    )


def _host(cell: Any) -> str:
    return str(cell.address).rpartition(":")[0]


def _tried(api: KubeApi, pod: Any, *addresses: str) -> list[str]:
    """Return which addresses a Pod without a policy reaches."""
    name = pod["metadata"]["name"]
    said = api.run_in(name, ["sh", "-c", _TRY, "sh", *addresses]).stdout.decode()
    return [line.removeprefix("open ") for line in said.splitlines() if line.startswith("open ")]


async def _reached(cell: Any, *addresses: str) -> list[str]:
    said = await output(cell, "sh", "-c", _TRY, "sh", *addresses)
    assert len(said.splitlines()) == len(addresses), said
    return [line.removeprefix("open ") for line in said.splitlines() if line.startswith("open ")]


async def test_a_sandbox_reaches_nothing_and_only_the_daemon_reaches_it(
    cluster, api, bystanders, tmp_path
):
    pods = [(one["status"]["podIP"], SERVED) for one in bystanders]
    server = (cluster.machine.address, PORT)
    async with sandbox_backend.opened(cluster, tmp_path) as backend:
        cells = [await backend.create(new_sandbox_id(), SPEC) for _ in range(2)]
        gates = [(_host(one), GATE) for one in cells]
        everything = _everything(cluster, bystanders, cells)
        # That these answer others shows that it is the policy which closes them.
        for one in bystanders:
            others = [pod for pod in pods if pod[0] != one["status"]["podIP"]]
            seen = await asyncio.to_thread(_tried, api, one, *_addresses(server, *others))
            assert seen == _addresses(server, *others)
        for cell in cells:
            own = f"{_host(cell)}:{GATE}"
            assert await _reached(cell, *(one for one in everything if one != own)) == []
        for one in bystanders:
            assert await asyncio.to_thread(_tried, api, one, *_addresses(*gates)) == []


async def test_the_first_command_of_every_sandbox_finds_the_network_closed(cluster, api, tmp_path):
    server = f"{cluster.machine.address}:{PORT}"
    async with sandbox_backend.opened(cluster, tmp_path) as backend:

        async def first_command() -> list[str]:
            cell = await backend.create(new_sandbox_id(), SPEC)
            return await _reached(cell, server)

        assert await asyncio.gather(*(first_command() for _ in range(8))) == [[]] * 8


@pytest.mark.promise("P111")
async def test_a_sandbox_with_a_network_reaches_public_addresses_and_nothing_of_the_cluster(
    cluster, api, bystanders, public, tmp_path
):
    outside = f"{public[0]}:{public[1]}"
    async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
        cells = [await backend.create(new_sandbox_id(), one) for one in (FULL, FULL, SPEC)]
        *with_network, closed = cells
        everything = _everything(cluster, bystanders, cells)
        # These answer a Pod that no policy selects.
        first, second = bystanders
        seen = await asyncio.to_thread(_tried, api, first, outside, everything[0], everything[2])
        assert seen == [outside, everything[0], everything[2]]
        for cell in with_network:
            others = [one for one in everything if one != f"{_host(cell)}:{GATE}"]
            assert await _reached(cell, outside, *others) == [outside]
        assert await _reached(closed, outside) == []
        gates = _addresses(*((_host(one), GATE) for one in cells))
        assert await asyncio.to_thread(_tried, api, second, *gates) == []


@pytest.mark.promise("P111")
async def test_code_cannot_get_around_the_policy_of_its_class(
    cluster, bystanders, public, tmp_path
):
    attacks = _ATTACKS.read_text()
    async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
        cell = await backend.create(new_sandbox_id(), WITH_PYTHON)
        # The server answers at the machine's address too, which is not public.
        near = (cluster.machine.address, SERVED)
        words = [str(one) for one in (*near, *public, _host(cell))]
        said = await output(cell, "python3", "-c", attacks, *words)
        assert said.splitlines() == ["public tcp", "public udp"]


@pytest.mark.promise("P111")
async def test_what_listens_in_a_sandbox_with_a_network_is_not_reached(
    cluster, api, bystanders, tmp_path
):
    async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
        cell = await backend.create(new_sandbox_id(), WITH_PYTHON)
        listener = asyncio.ensure_future(output(cell, "python3", "-c", _LISTENER))
        own, address = _host(cell), f"{_host(cell)}:9000"
        # Now it listens.
        await output(cell, "python3", "-c", _KNOCK, own, "ready")
        for one in bystanders:
            assert await asyncio.to_thread(_tried, api, one, address) == []
        with pytest.raises(OSError, match="9000"):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.open_connection(own, 9000)
        await output(cell, "python3", "-c", _KNOCK, own, "stop")
        assert set((await listener).split()) == {own}


@pytest.mark.promise("P111")
async def test_the_first_command_of_every_class_finds_its_policy_in_force(
    cluster, api, public, tmp_path
):
    server, outside = f"{cluster.machine.address}:{PORT}", f"{public[0]}:{public[1]}"
    async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:

        async def first_command() -> list[str]:
            cell = await backend.create(new_sandbox_id(), FULL)
            return await _reached(cell, server, outside)

        assert await asyncio.gather(*(first_command() for _ in range(6))) == [[outside]] * 6


@pytest.mark.promise("P111")
@pytest.mark.timeout(180)
async def test_a_class_whose_policy_is_missing_or_too_wide_is_refused(cluster, api, tmp_path):
    sandbox_policy.remove(cluster, sandbox_policy.FULL)
    try:
        async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
            with pytest.raises(IsolationRefused, match=cluster.machine.address) as raised:
                await backend.create(new_sandbox_id(), FULL)
            assert "class full" in raised.value.hint
            # The other class is not concerned.
            await backend.create(new_sandbox_id(), SPEC)
        # One that leaves the nodes open: the API server is out of reach, their kubelets are not.
        wide = sandbox_policy.documented(sandbox_policy.FULL)
        blocks = [{"ipBlock": {"cidr": f"{one.address}/32"}} for one in cluster.nodes]
        wide["spec"]["egress"] = [{"to": blocks}]
        sandbox_policy.apply(cluster, sandbox_policy.FULL, made=wide)
        async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
            with pytest.raises(IsolationRefused, match=rf":{KUBELET}"):
                await backend.create(new_sandbox_id(), FULL)
            assert list(await backend.owned()) == []
        sandbox_policy.remove(cluster, sandbox_policy.FULL)
    finally:
        sandbox_policy.apply(cluster, sandbox_policy.FULL)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "spec", [SPEC, pytest.param(FULL, marks=pytest.mark.promise("P111"))], ids=["closed", "full"]
)
async def test_no_code_runs_while_the_policy_is_not_in_force(cluster, api, tmp_path, spec):
    server = f"{cluster.machine.address}:{PORT}"
    async with sandbox_backend.opened(cluster, tmp_path, network_full=True) as backend:
        await (await backend.create(new_sandbox_id(), spec)).destroy()
        for node in cluster.nodes:
            node.kill_policy_controller()
        try:
            making = asyncio.ensure_future(backend.create(new_sandbox_id(), spec))
            pod = await asyncio.to_thread(_running, api)
            # The gate has not given the runner its listener.
            name = pod["metadata"]["name"]
            entry = await asyncio.to_thread(_files, api, name, pod_names.ENTRY_DIR)
            assert "socket" not in entry
            assert not making.done()
        finally:
            for node in cluster.nodes:
                node.start_policy_controller(cluster.kubeconfig)
        cell = await making
        assert await _reached(cell, server) == []


@pytest.mark.timeout(180)
async def test_a_namespace_without_a_policy_is_refused(cluster, api, tmp_path):
    sandbox_policy.remove(cluster)
    try:
        async with sandbox_backend.opened(cluster, tmp_path) as backend:
            with pytest.raises(IsolationRefused, match=cluster.machine.address) as raised:
                await backend.create(new_sandbox_id(), SPEC)
            assert "NetworkPolicy" in raised.value.hint
            assert list(await backend.owned()) == []
    finally:
        sandbox_policy.apply(cluster)
    assert api.pods("sandkasten=cell") == []


def _running(api: KubeApi) -> Any:
    """Return the Pod of a sandbox when both of its containers run."""

    def runs(pod: Any) -> bool:
        states = [one["state"] for one in pod["status"].get("containerStatuses", ())]
        return len(states) == 2 and all("running" in state for state in states)

    return wait_for(
        lambda: [one for one in api.pods("sandkasten=cell") if runs(one)],
        bool,
        lambda _: "no Pod of a sandbox runs",
    )[0]


def _files(api: KubeApi, name: str, path: str) -> list[str]:
    done = api.run_in(name, ["ls", path], container=pod_names.SANDBOX_CONTAINER)
    return done.stdout.decode().split()


@pytest.mark.promise("P109")
async def test_each_namespace_has_its_own_trial(cluster, api, tmp_path):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "boxes-open"}}
    options = replace(
        cluster_images.options(str(cluster.kubeconfig)),
        network_policy="checked",
        namespace="default",
        tenant_namespaces={"acme": "boxes-open"},
    )
    api.apply(namespace)
    backend = TenantNamespaces(tmp_path, options, read_nested)
    theirs = replace(SPEC, place=backend.capabilities.place("acme"))
    try:
        await (await backend.create(new_sandbox_id(), SPEC)).destroy()
        # The policy of another namespace closes nothing here.
        with pytest.raises(IsolationRefused):
            await backend.create(new_sandbox_id(), theirs)
        assert list(await backend.owned()) == []
        await (await backend.create(new_sandbox_id(), SPEC)).destroy()
        sandbox_policy.apply(cluster, namespace="boxes-open")
        cell = await backend.create(new_sandbox_id(), theirs)
        assert await _reached(cell, f"{cluster.machine.address}:{PORT}") == []
        await cell.destroy()
        assert list(await backend.owned()) == []
    finally:
        await backend.aclose()
        api.ask("DELETE", path_of(namespace))
