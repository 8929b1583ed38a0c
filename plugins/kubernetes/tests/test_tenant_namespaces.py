"""Tenants with a namespace of their own, on an API server that is scripted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    InvalidConfiguration,
    QuotaExceeded,
    SandboxLost,
    UnsupportedByBackend,
)
from sandkasten.model.ids import SandboxId, new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.pool.pool_kinds import kind_digest, pooled_spec
from sandkasten.model.sandbox.cell_spec import CellSpec, Volume
from sandkasten_kubernetes import pod_manifest
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_kubernetes.tenant_namespaces import TenantNamespaces
from sandkasten_runtime.assembly.backend_registry import read_nested
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.backends.gate import entry_keys
from sandkasten_runtime.wire.channel import Channel
from tests.kubernetes.fake_cluster import FakeCluster
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    Opened = Callable[..., TenantNamespaces]

pytestmark = pytest.mark.promise("P109")
SPEC = CellSpec(image=Image("example.org/python:3.11", "engine"))
OURS, ACME, BETA = "boxes", "boxes-acme", "boxes-beta"
RUNNING = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "containerStatuses": [{"name": name, "state": {"running": {}}} for name in ("gate", "sandbox")],
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path) as fake:
        yield fake


@pytest.fixture
async def opened(cluster: FakeCluster, tmp_path: Path) -> AsyncIterator[Opened]:
    backends: list[TenantNamespaces] = []
    options = KubernetesOptions(
        kubeconfig=cluster.kubeconfig(),
        namespace=OURS,
        tenant_namespaces={"acme": ACME, "beta": BETA},
        installation="tests",
        runner_image="r",
        port=free_port(),
        reach="direct",
    )

    def open_backend(**changes: Any) -> TenantNamespaces:
        backends.append(TenantNamespaces(tmp_path, replace(options, **changes), read_nested))
        for place in (OURS, ACME, BETA):
            # These Pods are processes of this machine, which no self-test lets pass.
            backends[-1]._at(place)._tried.add("closed")
        return backends[-1]

    yield open_backend
    for instance in backends:
        await instance.aclose()


@pytest.fixture
def backend(opened: Opened) -> TenantNamespaces:
    return opened()


def spec(backend: TenantNamespaces, tenant: str) -> CellSpec:
    return replace(SPEC, place=backend.capabilities.place(tenant))


async def made_in(backend: TenantNamespaces, cluster: FakeCluster, namespace: str) -> SandboxId:
    """Put the objects of a sandbox into a namespace, as another daemon would; nothing runs."""
    sandbox_id = new_sandbox_id()
    cluster.script.status = RUNNING
    client = backend._at(namespace)._client
    keys = entry_keys.make_keys(sandbox_id, "kubernetes").to_data()
    await client.create("secrets", pod_manifest.secret(sandbox_id, "tests", "a", keys))
    body = pod_manifest.pod(sandbox_id, SPEC, KubernetesOptions(), "tests", "a")
    await client.create("pods", body)
    cluster.script.status = None
    return sandbox_id


def namespaces(cluster: FakeCluster) -> set[str]:
    return {resource["metadata"]["namespace"] for resource in cluster.objects.values()}


async def test_a_sandbox_is_made_in_the_namespace_of_its_tenant(
    backend: TenantNamespaces, cluster: FakeCluster
):
    assert [backend.capabilities.place(name) for name in ("acme", "beta", "other")] == [
        ACME,
        BETA,
        OURS,
    ]
    for tenant, namespace in (("acme", ACME), ("other", OURS)):
        cell = await backend.create(new_sandbox_id(), spec(backend, tenant))
        channel = await Channel.open(await cell.dial())
        assert await channel.call("ping", timeout_s=PATIENCE_S) == {}
        await channel.aclose()
        assert namespaces(cluster) == {namespace}
        await cell.destroy()
        assert cluster.objects == {}


async def test_a_daemon_that_starts_finds_the_sandboxes_of_all_namespaces(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    ids = [await made_in(backend, cluster, namespace) for namespace in (OURS, ACME, BETA)]
    for the_id in ids:
        # Each time without having seen a list.
        other = opened()
        assert (await other.attach(the_id)).id == the_id
    assert list(await opened().owned()) == sorted(ids)
    for the_id in ids:
        await opened().discard(the_id)
    assert cluster.objects == {}
    with pytest.raises(SandboxLost):
        await backend.attach(ids[0])


async def test_a_list_says_where_a_sandbox_is(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    sandbox_id = await made_in(backend, cluster, ACME)
    other = opened()
    await other.owned()
    before = cluster.counts["list pods"]
    await other.attach(sandbox_id)
    assert cluster.counts["list pods"] == before
    await other.discard(sandbox_id)
    await other.owned()
    assert other._places == {}


async def test_a_namespace_that_is_not_permitted_stops_only_its_own_tenant(
    backend: TenantNamespaces, cluster: FakeCluster
):
    acme, beta = [await made_in(backend, cluster, namespace) for namespace in (ACME, BETA)]
    await backend.owned()
    cluster.script.forbidden = {ACME}
    with pytest.raises(BackendUnavailable) as refused:
        await backend.create(new_sandbox_id(), spec(backend, "acme"))
    assert (refused.value.details, ACME in refused.value.hint) == ({"place": ACME}, True)
    # Without rights, a namespace that does not exist cannot be told from one that does.
    assert refused.value.hint.startswith(f"create namespace {ACME} if it does not exist, and give")
    assert "Role" in refused.value.hint
    # What is there is not taken for gone, and the others are still found and removed.
    assert list(await backend.owned()) == [beta]
    for operation in (backend.attach(acme), backend.discard(acme)):
        with pytest.raises(BackendUnavailable) as refused:
            await operation
        assert refused.value.details["place"] == ACME
    await backend.attach(beta)
    await backend.discard(beta)
    cell = await backend.create(new_sandbox_id(), spec(backend, "other"))
    await cell.destroy()
    cluster.script.forbidden = set()
    assert list(await backend.owned()) == [acme]


async def test_a_sandbox_that_may_be_in_a_forbidden_namespace_is_not_gone(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    hidden = await made_in(backend, cluster, ACME)
    cluster.script.forbidden = {ACME}
    with pytest.raises(BackendUnavailable, match=ACME):
        await opened().attach(hidden)
    # The ledger knows where: then the other namespaces decide for themselves.
    restarted = opened()
    restarted.note_place(hidden, BETA)
    with pytest.raises(SandboxLost):
        await restarted.attach(hidden)


async def test_no_namespace_that_answers_is_an_error_of_the_backend(
    backend: TenantNamespaces, cluster: FakeCluster
):
    cluster.script.forbidden = {OURS, ACME, BETA}
    with pytest.raises(BackendUnavailable):
        await backend.owned()
    cluster.script.forbidden = set()
    cluster.script.away = True
    with pytest.raises(BackendUnavailable) as away:
        await backend.owned()
    assert "place" not in away.value.details


async def test_a_full_quota_of_one_tenant_leaves_the_others_alone(
    backend: TenantNamespaces, cluster: FakeCluster
):
    await made_in(backend, cluster, ACME)
    cluster.script.quota = {"pods": 1, "secrets": 1}
    with pytest.raises(QuotaExceeded) as refused:
        await backend.create(new_sandbox_id(), spec(backend, "acme"))
    assert refused.value.hint.endswith(f"raise the ResourceQuota of namespace {ACME}")
    cell = await backend.create(new_sandbox_id(), spec(backend, "beta"))
    await cell.destroy()
    assert namespaces(cluster) == {ACME}


async def test_a_tenant_that_left_the_settings_keeps_its_sandboxes(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    sandbox_id = await made_in(backend, cluster, ACME)
    for map_now in ({"beta": BETA}, {}):
        later = opened(tenant_namespaces=map_now)
        assert later.capabilities.place("acme") == OURS
        # As the row in the ledger says.
        later.note_place(sandbox_id, ACME)
        assert (await later.attach(sandbox_id)).id == sandbox_id
    await later.discard(sandbox_id)
    assert cluster.objects == {}


async def test_sandboxes_of_a_namespace_without_name_and_rights_are_lost(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    sandbox_id = await made_in(backend, cluster, ACME)
    cluster.script.forbidden = {ACME}
    for map_now in ({"beta": BETA}, {}):
        later = opened(tenant_namespaces=map_now)
        later.note_place(sandbox_id, ACME)
        with pytest.raises(SandboxLost, match=ACME):
            await later.attach(sandbox_id)
        # The record ends, and what is there is the operator's.
        await later.discard(sandbox_id)
        assert namespaces(cluster) == {ACME}
        cluster.script.away = True
        later.note_place(sandbox_id, ACME)
        with pytest.raises(BackendUnavailable):
            await later.attach(sandbox_id)
        cluster.script.away = False


@pytest.mark.promise("P110")
async def test_a_workspace_is_in_the_namespace_of_its_tenant(opened: Opened, cluster: FakeCluster):
    spec = replace(SPEC, workspace=Volume("notes@acme", "volume"))
    before = opened(tenant_namespaces={}, workspaces_enabled=True)
    await (await before.create(new_sandbox_id(), replace(spec, place=""))).destroy()
    assert namespaces(cluster) == {OURS}
    # The tenant gets a namespace of its own, from which no Pod can mount the claim.
    backend = opened(workspaces_enabled=True)
    for refused in (
        backend.create(new_sandbox_id(), replace(spec, place=ACME)),
        backend.copy_workspace("notes@acme", "other@acme"),
        backend.resize_workspace("notes@acme", 1 << 30),
    ):
        with pytest.raises(UnsupportedByBackend, match="notes is in the namespace that its tenant"):
            await refused
    await backend.remove_workspace("notes@acme")
    assert cluster.objects == {}
    await (await backend.create(new_sandbox_id(), replace(spec, place=ACME))).destroy()
    assert namespaces(cluster) == {ACME}
    assert await backend.interrupted_workspaces() == []
    await backend.remove_workspace("notes@acme")
    assert cluster.objects == {}


async def test_doctor_names_the_namespace_where_rights_are_missing(
    backend: TenantNamespaces, opened: Opened, cluster: FakeCluster
):
    good = await backend.probe()
    assert {requirement.name for requirement in good.requirements} >= {f"permissions in {ACME}"}
    assert all(requirement.ok for requirement in good.requirements)
    cluster.script.forbidden = {BETA}
    report = await backend.probe()
    # Other tenants can still create sandboxes.
    assert report.ready
    (bad,) = [requirement for requirement in report.requirements if not requirement.ok]
    assert bad.name == f"permissions in {BETA}"
    assert "create pods" in bad.state
    assert bad.remedy.startswith(f"create namespace {BETA} if it does not exist, and give")
    cluster.script.forbidden = {OURS}
    assert not (await backend.probe()).ready
    cluster.script.away = True
    assert not (await backend.probe()).ready


async def test_a_pooled_sandbox_is_of_one_namespace(backend: TenantNamespaces):
    own, acme, other = [spec(backend, tenant) for tenant in ("default", "acme", "other")]
    kinds = [pooled_spec(cell_spec, resizable=False) for cell_spec in (own, acme, other)]
    assert kinds[0] != kinds[1]
    assert kinds[0] == kinds[2]
    digests = [kind_digest("kubernetes", kind, None, "1") for kind in kinds]
    assert digests[0] != digests[1]


def test_the_settings_name_a_namespace_for_each_tenant(tmp_path: Path):
    file = tmp_path / "sandkasten.yaml"

    def read(text: str, **environ: str) -> KubernetesOptions:
        file.write_text(f"backends: {{kubernetes: {{{text}}}}}")
        return load({"config": str(file)}, environ, tmp_path).plugins["kubernetes"]

    section = read("namespace: a, tenant_namespaces: {acme: b, beta: c}")
    assert section.tenant_namespaces == {"acme": "b", "beta": "c"}
    variable = "SANDKASTEN_KUBERNETES_TENANT_NAMESPACES"
    assert read("namespace: a", **{variable: "acme=b"}).tenant_namespaces == {"acme": "b"}
    for wrong in ("{Acme: b}", "{acme: B}", "{acme: ''}", "[acme]", "[acme=b, acme=c]"):
        with pytest.raises(InvalidConfiguration, match="tenant_namespaces") as refused:
            read(f"namespace: a, tenant_namespaces: {wrong}")
        assert refused.value.hint
    with pytest.raises(InvalidConfiguration, match=r"requires backends\.kubernetes\.namespace"):
        read("tenant_namespaces: {acme: b}")
