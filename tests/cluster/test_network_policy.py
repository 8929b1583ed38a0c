"""A controller of the cluster enforces the NetworkPolicy of the guide, and no code runs before."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.backends.kubernetes import pod_names
from sandkasten.backends.kubernetes.tenant_namespaces import TenantNamespaces
from sandkasten.daemon.backend_registry import read_kubeconfig
from sandkasten.errors import IsolationRefused
from sandkasten.model.ids import new_sandbox_id
from tests.cluster import sandbox_backend, sandbox_policy
from tests.cluster.cluster import BUSYBOX, PORT, Cluster
from tests.cluster.kube_api import KubeApi, path_of, wait_for
from tests.cluster.sandbox_backend import SPEC, output
from tests.kubernetes import cluster_images

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P107"),
    pytest.mark.usefixtures("enforced"),
]

KUBELET, GATE, SERVED = 10250, 8484, 8080
# For each argument ADDRESS:PORT, whether it answers.
_TRY = """
for one in "$@"; do
    if nc -w 2 "${one%:*}" "${one##*:}" </dev/null >/dev/null 2>&1; then echo "open $one"
    else echo "closed $one"; fi
done
"""


def _addresses(*found: tuple[str, int]) -> list[str]:
    return [f"{host}:{port}" for host, port in found]


@pytest.fixture(scope="module")
def enforced(cluster: Cluster) -> Iterator[None]:
    """Enforce every NetworkPolicy, and have the one of the guide."""
    cluster_images.stock(cluster, "busybox")
    for node in cluster.nodes:
        node.start_policy_controller(cluster.kubeconfig)
    sandbox_policy.apply(cluster)
    yield
    sandbox_policy.remove(cluster)
    for node in cluster.nodes:
        node.stop_policy_controller()


@pytest.fixture
def bystanders(cluster: Cluster, api: KubeApi) -> Iterator[list[Any]]:
    """Yield a Pod of each node that no policy selects, and that answers on a port."""
    names = [f"bystander-{secrets.token_hex(4)}" for _ in cluster.nodes]
    serve = f"while :; do nc -l -p {SERVED} </dev/null; done"
    for name, node in zip(names, cluster.nodes, strict=True):
        container = {
            "name": "main",
            "image": BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", serve],
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node.name},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        api.create_pod({"metadata": {"name": name}, "spec": spec})
    yield [api.ready_pod(name) for name in names]
    for name in names:
        api.delete_pod(name)


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
        gates = [(str(one.address).rpartition(":")[0], GATE) for one in cells]
        everything = _addresses(
            server,
            *pods,
            *((node.address, KUBELET) for node in cluster.nodes),
            *gates,
            ("169.254.169.254", 80),
            ("10.96.0.1", 443),
        )
        # That these answer others shows that it is the policy which closes them.
        for one in bystanders:
            others = [pod for pod in pods if pod[0] != one["status"]["podIP"]]
            seen = await asyncio.to_thread(_tried, api, one, *_addresses(server, *others))
            assert seen == _addresses(server, *others)
        for cell in cells:
            own = f"{str(cell.address).rpartition(':')[0]}:{GATE}"
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


@pytest.mark.timeout(180)
async def test_no_code_runs_while_the_policy_is_not_in_force(cluster, api, tmp_path):
    server = f"{cluster.machine.address}:{PORT}"
    async with sandbox_backend.opened(cluster, tmp_path) as backend:
        await (await backend.create(new_sandbox_id(), SPEC)).destroy()
        for node in cluster.nodes:
            node.kill_policy_controller()
        try:
            making = asyncio.ensure_future(backend.create(new_sandbox_id(), SPEC))
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
    backend = TenantNamespaces(tmp_path, options, read_kubeconfig)
    theirs = replace(SPEC, place=backend.place("acme"))
    try:
        await (await backend.create(new_sandbox_id(), SPEC)).destroy()
        # The policy of another namespace closes nothing here.
        with pytest.raises(IsolationRefused):
            await backend.create(new_sandbox_id(), theirs)
        assert list(await backend.owned()) == []
        await (await backend.create(new_sandbox_id(), SPEC)).destroy()
        sandbox_policy.apply(cluster, "boxes-open")
        cell = await backend.create(new_sandbox_id(), theirs)
        assert await _reached(cell, f"{cluster.machine.address}:{PORT}") == []
        await cell.destroy()
        assert list(await backend.owned()) == []
    finally:
        await backend.aclose()
        api.ask("DELETE", path_of(namespace))
