"""Named workspaces on a real cluster: claims with volumes, and directories of one claim."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import (
    BackendUnavailable,
    Conflict,
    QuotaExceeded,
    UnsupportedByBackend,
    WorkspaceNotFound,
)
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_kubernetes import pod_names, workspace_manifest
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from tests.cluster import volume_provisioner
from tests.cluster.installation import manifests
from tests.cluster.replicas import replicas
from tests.cluster.volume_provisioner import CLASS, VolumeProvisioner
from tests.daemon.process import ask
from tests.kubernetes import cluster_images
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from sandkasten.model.sandbox.sandbox_values import Info
    from sandkasten_runtime.engine.engine import Engine
    from tests.cluster.cluster import Cluster
    from tests.cluster.kube_api import KubeApi

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P110"),
    pytest.mark.timeout(300),
]
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
# Replicas sweep every 60 s.
_SWEPT_S = 180.0
MAKE_FILES = """
echo one >a; echo two >~/b; mkdir -m 700 d; echo three >d/c; chmod 640 d/c; ln -s /usr/bin/x link
"""
# A directory has the group of the volume, and with it a bit that it was not given.
READ_FILES = "cat a ~/b d/c; readlink link; stat -c '%u %a' a d/c; ls -ld d | cut -c1-6"
FILES = b"one\ntwo\nthree\n/usr/bin/x\n1000 644\n1000 640\ndrwx--\n"


@pytest.fixture(scope="module")
def volumes(cluster_with_images: Cluster) -> Iterator[VolumeProvisioner]:
    with VolumeProvisioner(cluster_with_images) as made:
        yield made


@pytest.fixture
async def opened(
    cluster_with_images: Cluster, volumes: VolumeProvisioner, tmp_path: Path
) -> AsyncIterator[Callable[..., Any]]:
    """Open engines of one installation. Afterwards, neither claims nor volumes may be left."""
    data = tmp_path / "data"

    @asynccontextmanager
    async def open_one(kubeconfig: str = "", **workspaces: str) -> AsyncIterator[Engine]:
        environ = _environment(cluster_with_images, **workspaces)
        if kubeconfig:
            environ["SANDKASTEN_KUBERNETES_KUBECONFIG"] = kubeconfig
        found = await open_engine(load({"data_dir": str(data)}, environ, tmp_path))
        try:
            yield found
        finally:
            for one in await found.list(all=True):
                await found.destroy(one.id)
            await found.aclose()

    yield open_one
    api = cluster_with_images.api
    left = [one for one in _claims(api) if pod_names.LABEL in one["metadata"].get("labels", {})]
    # Also one of the operator's, which a test has made.
    for one in _claims(api):
        api.ask("DELETE", f"{CLAIMS}/{one['metadata']['name']}")
    await asyncio.to_thread(volumes.wait_until_empty)
    assert left == []
    assert api.pods("sandkasten") == []


def _environment(cluster: Cluster, **workspaces: str) -> dict[str, str]:
    program = cluster_images.reference(cluster_images.PROGRAM_IMAGE)
    told = {
        f"SANDKASTEN_KUBERNETES_WORKSPACES_{key.upper()}": workspaces[key] for key in workspaces
    }
    start_s = told.pop("SANDKASTEN_KUBERNETES_WORKSPACES_START_S", "60")
    return {
        "SANDKASTEN_BACKEND": "kubernetes",
        "SANDKASTEN_DEFAULT_IMAGE": cluster_images.reference("debian"),
        "SANDKASTEN_KUBERNETES_KUBECONFIG": str(cluster.kubeconfig),
        "SANDKASTEN_KUBERNETES_RUNNER_IMAGE": program,
        "SANDKASTEN_KUBERNETES_PULL_POLICY": "Never",
        "SANDKASTEN_KUBERNETES_OVERCOMMIT": "100",
        "SANDKASTEN_KUBERNETES_NETWORK_POLICY": "assumed",
        "SANDKASTEN_KUBERNETES_START_TIMEOUT_SECONDS": start_s,
        "SANDKASTEN_POOL_ONESHOT_SPARES": "0",
        **told,
    }


def _wanted(name: str, **more: Any) -> CreateRequest:
    return CreateRequest(SandboxOptions(workspace_id=name, **more))


async def _sh(engine: Engine, sandbox_id: str, command: str) -> bytes:
    done = await engine.exec(sandbox_id, ExecRequest(command))
    assert done.exit_code == 0, done.stderr
    return done.stdout


async def _created_when_free(engine: Engine, name: str) -> Info:
    """Create a sandbox when the one that has the workspace is known to have ended."""
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while True:
            with suppress(Conflict):
                return await engine.create(_wanted(name))


def _nodes(api: KubeApi) -> list[str]:
    return [one["spec"]["nodeName"] for one in api.pods("sandkasten=cell")]


@pytest.fixture
def one_claim(cluster_with_images: Cluster, volumes: VolumeProvisioner) -> str:
    """A claim of the operator's that both nodes can write."""
    api, name = cluster_with_images.api, f"all-{secrets.token_hex(4)}"
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "64Mi"}},
        "storageClassName": CLASS,
    }
    api.ask("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
    return name


async def test_a_workspace_is_a_claim_that_outlives_its_sandboxes(
    opened: Callable[..., Any], api: KubeApi
):
    async with opened(storage_class=CLASS) as sand:
        first = await sand.create(_wanted("notes", limits={"workspace_mb": 32}))
        (claim,) = api.ask("GET", CLAIMS)["items"]
        assert claim["metadata"]["labels"][pod_names.LABEL_WORKSPACE] == "notes"
        assert claim["spec"]["resources"]["requests"]["storage"] == str(32 << 20)
        assert "workspace" in [one.limit for one in first.unenforced]
        await _sh(sand, first.id, MAKE_FILES)
        with pytest.raises(Conflict, match=first.id):
            await sand.create(_wanted("notes"))
        # The Pod is gone, and not by us.
        api.delete_pod(pod_names.pod_name(first.id))
        second = await _created_when_free(sand, "notes")
        assert await _sh(sand, second.id, READ_FILES) == FILES
        with pytest.raises(Conflict, match="cannot be deleted"):
            await sand.workspaces.delete("notes")
        await sand.destroy(second.id)
    # Another process.
    async with opened(storage_class=CLASS) as sand:
        [found] = await sand.workspaces.list()
        assert (found.name, found.kind, found.size_bytes) == ("notes", "volume", 32 << 20)
        await sand.workspaces.resize("notes", 48)
        (claim,) = api.ask("GET", CLAIMS)["items"]
        assert claim["spec"]["resources"]["requests"]["storage"] == str(48 << 20)
        async with sand.workspace_files.lent("notes") as lender:
            assert (await sand.files.read(lender, "a")).data == b"one\n"
        await sand.workspaces.delete("notes")
        with pytest.raises(WorkspaceNotFound):
            await sand.workspaces.get("notes")


async def test_a_copy_has_the_same_files(opened: Callable[..., Any]):
    async with opened(storage_class=CLASS) as sand:
        await sand.workspaces.create("unused")
        await sand.workspaces.copy("unused", "empty")
        made = await sand.create(_wanted("notes"))
        await _sh(sand, made.id, MAKE_FILES)
        with pytest.raises(Conflict, match="cannot be copied"):
            await sand.workspaces.copy("notes", "other")
        await sand.destroy(made.id)
        await sand.workspaces.copy("notes", "other")
        for name in ("notes", "other"):
            info = await sand.create(_wanted(name))
            assert await _sh(sand, info.id, READ_FILES) == FILES
            await sand.destroy(info.id)
        for name in ("unused", "empty", "notes", "other"):
            await sand.workspaces.delete(name)


@pytest.mark.parametrize(("mode", "nodes"), [("ReadWriteMany", 2), ("ReadWriteOnce", 1)])
async def test_sandboxes_share_a_workspace_on_as_many_nodes_as_its_access_mode_allows(
    opened: Callable[..., Any], api: KubeApi, mode: str, nodes: int
):
    async with opened(storage_class=CLASS, access_mode=mode) as sand:
        asked = _wanted("board", workspace_mode="shared")
        first, *others = [await sand.create(asked) for _ in range(3)]
        assert len(set(_nodes(api))) == nodes
        await _sh(sand, first.id, "echo hello >file")
        for one in others:
            assert await _sh(sand, one.id, "cat file; echo more >>file") != b""
        assert await _sh(sand, first.id, "grep -c . file") == b"3\n"
        with pytest.raises(Conflict, match="has it shared"):
            await sand.create(_wanted("board"))
        for one in (first, *others):
            await sand.destroy(one.id)
        await sand.workspaces.delete("board")


async def test_workspaces_are_directories_of_one_claim(
    opened: Callable[..., Any], api: KubeApi, one_claim: str, volumes: VolumeProvisioner
):
    async with opened(claim=one_claim) as sand:
        asked = _wanted("board", workspace_mode="shared")
        pair = [await sand.create(asked) for _ in range(2)]
        await _sh(sand, pair[0].id, MAKE_FILES)
        assert await _sh(sand, pair[1].id, READ_FILES) == FILES
        other = await sand.create(_wanted("other"))
        assert await _sh(sand, other.id, "find /workspace ~ -mindepth 1") == b""
        for one in (*pair, other):
            await sand.destroy(one.id)
        await sand.workspaces.copy("board", "copy")
        info = await sand.create(_wanted("copy"))
        assert await _sh(sand, info.id, READ_FILES) == FILES
        await sand.destroy(info.id)
        place = volumes.directory(one_claim)
        assert len(list(place.iterdir())) == 6
        assert len(api.ask("GET", CLAIMS)["items"]) == 1
        for name in ("board", "other", "copy"):
            await sand.workspaces.delete(name)
        assert list(place.iterdir()) == []


async def test_a_copy_that_was_interrupted_is_removed(
    opened: Callable[..., Any], api: KubeApi, volumes: VolumeProvisioner, tmp_path: Path
):
    async with opened(storage_class=CLASS) as sand:
        made = await sand.create(_wanted("notes"))
        await sand.destroy(made.id)
        owner = (tmp_path / "data" / "kubernetes" / "owner").read_text()
        kept = KubernetesOptions(workspace_class=CLASS)
        # As a daemon leaves it that is killed during a copy.
        options = cluster_images.options("")
        task = workspace_manifest.copy_task(
            owner, "notes", "half", replace(options, workspace_class=CLASS)
        )
        api.create_pod(task)
        api.ask("POST", CLAIMS, workspace_manifest.claim(owner, "half", 1 << 20, kept, "killed"))
        assert len(api.ask("GET", CLAIMS)["items"]) == 2
        await sand.sweep()
        assert api.pods("sandkasten=workspace-task") == []
        (left,) = api.ask("GET", CLAIMS)["items"]
        assert left["metadata"]["labels"][pod_names.LABEL_WORKSPACE] == "notes"
        await sand.workspaces.delete("notes")


@pytest.mark.parametrize(
    ("storage_class", "error", "said"),
    [
        ("missing", BackendUnavailable, 'storageclass.storage.k8s.io "missing" not found'),
        (volume_provisioner.FULL, QuotaExceeded, "not enough space in the pool"),
    ],
)
async def test_a_claim_without_a_volume_is_named_and_removed(
    opened: Callable[..., Any], api: KubeApi, storage_class: str, error: type[Exception], said: str
):
    async with opened(storage_class=storage_class, start_s="8") as sand:
        with pytest.raises(error, match=said) as raised:
            await sand.create(_wanted("notes"))
        assert "storage" in getattr(raised.value, "hint", "")
        assert api.ask("GET", CLAIMS)["items"] == []
    async with opened(storage_class=CLASS) as sand:
        # The operator has corrected the setting.
        await sand.destroy((await sand.create(_wanted("notes"))).id)
        await sand.workspaces.delete("notes")


async def test_a_missing_claim_of_the_operator_is_named(opened: Callable[..., Any]):
    async with opened(claim="nowhere", start_s="5") as sand:
        with pytest.raises(BackendUnavailable, match='persistentvolumeclaim "nowhere"') as raised:
            await sand.create(_wanted("notes"))
        assert "backends.kubernetes.workspaces.claim" in raised.value.hint
        # Nothing can be erased there; its record goes with the data directory.


async def test_the_role_of_the_manifests_is_enough(
    opened: Callable[..., Any], cluster_with_images: Cluster, tmp_path: Path
):
    limited = await asyncio.to_thread(_limited_kubeconfig, cluster_with_images, tmp_path)
    async with opened(storage_class=CLASS, kubeconfig=limited) as sand:
        made = await sand.create(_wanted("notes"))
        await _sh(sand, made.id, MAKE_FILES)
        await sand.destroy(made.id)
        await sand.workspaces.copy("notes", "other")
        await sand.workspaces.resize("other", 2000)
        for name in ("notes", "other"):
            await sand.workspaces.delete(name)
        await sand.sweep()
    async with opened(storage_class="missing", start_s="8", kubeconfig=limited) as sand:
        with pytest.raises(BackendUnavailable, match='"missing" not found'):
            await sand.create(_wanted("notes"))
        await sand.workspaces.delete("notes")


def _limited_kubeconfig(cluster: Cluster, place: Path) -> str:
    """Return credentials with the rights of deploy/kubernetes, in the default namespace."""
    api, name = cluster.api, f"limited-{secrets.token_hex(4)}"
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    api.ask("POST", accounts, {"metadata": {"name": name}})
    rules = [
        rule for one in manifests("workspaces") if one["kind"] == "Role" for rule in one["rules"]
    ]
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    api.ask("POST", f"{rbac}/roles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    api.ask("POST", f"{rbac}/rolebindings", binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.ask("POST", f"{accounts}/{name}/token", request)["status"]["token"]
    file = place / "limited.kubeconfig"
    cluster.write_kubeconfig(file, token)
    return str(file)


async def test_without_the_setting_workspaces_are_refused_and_nothing_is_made(
    opened: Callable[..., Any],
):
    async with opened() as sand:
        for asked in (sand.create(_wanted("notes")), sand.workspaces.create("notes")):
            with pytest.raises(UnsupportedByBackend, match="keeps no named workspaces") as raised:
                await asked
            assert "backends.kubernetes.workspaces.enabled" in raised.value.hint
        assert await sand.workspaces.list() == []


@pytest.fixture
async def pair(cluster_with_images, volumes, postgres_server, tmp_path):
    kept = {"SANDKASTEN_KUBERNETES_WORKSPACES_STORAGE_CLASS": CLASS}
    async with replicas(cluster_with_images, postgres_server, tmp_path, **kept) as found:
        yield found
    await asyncio.to_thread(volumes.wait_until_empty)


async def test_either_replica_serves_every_workspace(pair):
    one, other = pair.daemons
    path = await pair.create(one, workspace_id="notes")
    await pair.run(one, path, "echo kept >file")
    listed = await pair.ask(other, "GET", "/v1/workspaces")
    assert "notes" in str(listed)
    status, told = await ask(
        pair.http, "POST", other.url + "/v1/sessions", {"workspace_id": "notes"}
    )
    assert (status, told["code"]) == (409, "CONFLICT")
    await pair.ask(other, "DELETE", path)
    path = await pair.create(other, workspace_id="notes")
    assert await pair.run(one, path, "cat file") == "kept\n"
    await pair.ask(one, "DELETE", path)
    await pair.ask(other, "DELETE", "/v1/workspaces/notes")
    assert (await ask(pair.http, "GET", one.url + "/v1/workspaces/notes"))[0] == 404


async def test_a_workspace_whose_replica_is_killed_is_used_by_the_other(pair, api):
    one, other = pair.daemons
    # Recorded, and nothing made yet.
    await pair.ask(one, "POST", "/v1/workspaces", {"name": "notes"})
    await one.kill()
    path = await pair.create(other, workspace_id="notes")
    await pair.run(other, path, "echo kept >file")
    await pair.ask(other, "DELETE", path)
    await one.start()
    # Killed when the claim is there, and its Pod perhaps not.
    before, body = len(_claims(api)), {"workspace_id": "w"}
    making = asyncio.create_task(ask(pair.http, "POST", one.url + "/v1/sessions", body))
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while len(await asyncio.to_thread(_claims, api)) == before:
            pass
    await one.kill()
    await asyncio.gather(making, return_exceptions=True)
    await one.start()
    status, made = 0, dict[str, Any]()
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while status != 201:
            status, made = await ask(pair.http, "POST", other.url + "/v1/sessions", body)
    assert len(_claims(api)) == before + 1
    path = f"/v1/sessions/{made['id']}"
    assert await pair.run(one, path, "ls; echo used >file") == ""
    await pair.ask(other, "DELETE", path)
    for name in ("notes", "w"):
        await pair.ask(one, "DELETE", f"/v1/workspaces/{name}")


async def test_a_copy_whose_replica_is_killed_leaves_nothing(pair, api):
    one, other = pair.daemons
    path = await pair.create(one, workspace_id="notes")
    await pair.run(one, path, "head -c 100000000 /dev/zero >file")
    await pair.ask(one, "DELETE", path)
    copied = f"{one.url}/v1/workspaces/notes/copy"
    copying = asyncio.create_task(ask(pair.http, "POST", copied, {"name": "copy"}))
    tasks = "sandkasten=workspace-task"
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while len(await asyncio.to_thread(_claims, api)) != 2:
            assert not copying.done(), await copying
    await one.kill()
    await asyncio.gather(copying, return_exceptions=True)
    assert (await ask(pair.http, "GET", f"{other.url}/v1/workspaces/copy"))[0] == 404
    # The other replica sweeps.
    async with asyncio.timeout(_SWEPT_S):
        while True:
            if len(await asyncio.to_thread(_claims, api)) == 1 and not api.pods(tasks):
                break
            await asyncio.sleep(0.5)
    await one.start()
    made = await pair.ask(one, "POST", "/v1/workspaces/notes/copy", {"name": "copy"})
    assert made["name"] == "copy"
    for name in ("notes", "copy"):
        await pair.ask(other, "DELETE", f"/v1/workspaces/{name}")


def _claims(api: KubeApi) -> list[Any]:
    return list(api.ask("GET", CLAIMS)["items"])
