"""Named workspaces on a scripted API server, and the Pods and programs that work on their files."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import Busy, Conflict, UnsupportedByBackend
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec, Volume
from sandkasten.ports import KeepsWorkspaces
from sandkasten_kubernetes import kept_claims, pod_manifest, pod_names, workspace_manifest
from sandkasten_kubernetes.kubernetes_options import KubernetesOptions
from sandkasten_runtime.linux.programs import Programs
from tests.kubernetes.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sandkasten_kubernetes.backend import KubernetesBackend

pytestmark = pytest.mark.promise("P110")
SPEC = CellSpec(
    image=Image("example.org/python:3.11", "engine"), workspace=Volume("notes", "volume")
)
KEPT = KubernetesOptions()


@pytest.fixture(params=[False, True], ids=["pods", "agent-sandbox"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, agent_sandbox=request.param) as fake:
        yield fake


def claims(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [
        resource for (kind, _), resource in cluster.objects.items() if kind == kept_claims.CLAIMS
    ]


def mounted(options: KubernetesOptions, name: str = "notes") -> dict[str, Any]:
    pod = pod_manifest.pod(new_sandbox_id(), SPEC, KubernetesOptions(), "mine", "attempt")
    workspace_manifest.mount(pod, "mine", name, options)
    return pod


def places(pod: dict[str, Any]) -> dict[str, tuple[str, str]]:
    (sandbox,) = [
        container for container in pod["spec"]["containers"] if container["name"] == "sandbox"
    ]
    of = {
        volume["name"]: volume.get("persistentVolumeClaim", {}) for volume in pod["spec"]["volumes"]
    }
    return {
        mount["mountPath"]: (of[mount["name"]]["claimName"], mount["subPath"])
        for mount in sandbox["volumeMounts"]
        if "subPath" in mount
    }


def test_a_pod_has_the_directories_of_its_workspace_and_no_others():
    key = pod_names.workspace_key("mine", "notes")
    pod = mounted(KEPT)
    assert places(pod) == {"/workspace": (key, "files"), "/home/sandbox": (key, "home")}
    assert not {"workspace", "home"} & {volume["name"] for volume in pod["spec"]["volumes"]}
    assert pod["spec"]["securityContext"]["fsGroup"] == 1000
    assert "affinity" in pod["spec"]
    assert "affinity" not in mounted(replace(KEPT, workspace_access="ReadWriteMany"))["spec"]
    pod = mounted(KubernetesOptions(workspace_claim="all"))
    assert places(pod) == {
        "/workspace": ("all", f"{key}.files"),
        "/home/sandbox": ("all", f"{key}.home"),
    }
    assert "affinity" not in pod["spec"]


def test_workspaces_of_tenants_and_installations_have_different_names():
    workspaces = ("notes", "notes@acme", "notes@other", "n" * 64, f"{'n' * 64}@acme")
    names = {
        pod_names.workspace_key(owner, workspace)
        for owner in ("a", "b")
        for workspace in workspaces
    }
    assert len(names) == 2 * len(workspaces)
    labels = [pod_names.workspace_label(workspace) for workspace in workspaces]
    assert labels[0] == "notes"
    assert len(set(labels)) == len(workspaces)
    assert all(len(label) <= 63 and "@" not in label for label in labels)


def test_a_claim_that_waits_for_its_pod_is_not_the_reason():
    waits = ("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    failed = ("ProvisioningFailed", "no\nspace left")
    assert kept_claims.why_unbound([waits]) is None
    assert kept_claims.why_unbound([waits, failed, waits]) == "no space left"
    assert kept_claims.why_unbound([]) == ""


async def test_a_claim_is_made_once_and_used_again(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    backend = opened(workspaces_enabled=True)
    assert isinstance(backend, KeepsWorkspaces)
    cluster.script.lost_answers = 1
    await (await backend.create(new_sandbox_id(), SPEC)).destroy()
    (claim,) = claims(cluster)
    assert claim["metadata"]["annotations"][pod_names.NAME] == "notes"
    await (await opened(workspaces_enabled=True).create(new_sandbox_id(), SPEC)).destroy()
    assert claims(cluster) == [claim]
    await backend.remove_workspace("notes")
    await backend.remove_workspace("notes")
    assert cluster.objects == {}


async def test_a_claim_of_another_owner_is_not_used(
    opened: Callable[..., KubernetesBackend], cluster: FakeCluster
):
    backend = opened(workspaces_enabled=True)
    await (await backend.create(new_sandbox_id(), SPEC)).destroy()
    (claim,) = claims(cluster)
    claim["metadata"]["labels"][pod_names.LABEL_OWNER] = "stranger"
    with pytest.raises(Conflict, match="did not make"):
        await backend.create(new_sandbox_id(), SPEC)
    await backend.remove_workspace("notes")
    assert claims(cluster) == [claim]


async def test_a_pod_that_may_still_write_keeps_the_workspace(
    opened: Callable[..., KubernetesBackend],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(kept_claims, "_REMOVED_S", 0.1)
    backend = opened(workspaces_enabled=True)
    cell = await backend.create(new_sandbox_id(), SPEC)
    pod = cluster.objects["pods", pod_names.pod_name(cell.id)]
    # Its node does not answer.
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for work in (backend.create(new_sandbox_id(), SPEC), backend.remove_workspace("notes")):
        with pytest.raises(Busy, match="may still be written by Pod") as raised:
            await work
        name = pod["metadata"]["name"]
        assert f"kubectl -n boxes delete pod {name} --grace-period=0 --force" in raised.value.hint


async def test_without_the_setting_nothing_is_kept(backend: KubernetesBackend):
    with pytest.raises(UnsupportedByBackend, match="keeps no named workspaces"):
        await backend.keeps_workspaces()
    with pytest.raises(UnsupportedByBackend, match="keeps no named workspaces"):
        await backend.create(new_sandbox_id(), SPEC)
    assert await backend.interrupted_workspaces() == ()


def test_the_runner_copies_a_tree_as_it_is(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d" / "e").mkdir(parents=True)
    target.mkdir()
    (source / "d" / "file").write_bytes(b"x" * 3_000_000)
    (source / "d" / "file").chmod(0o640)
    (source / "d" / "e").chmod(0o700)
    (source / "link").symlink_to("/usr/bin/python3")
    os.mkfifo(source / "fifo", 0o600)
    runner = str(Programs.found(None, None).runner)
    subprocess.run([runner, "--copy", str(source), str(target)], check=True)
    assert (target / "d" / "file").read_bytes() == (source / "d" / "file").read_bytes()
    for name in ("d", "d/file", "d/e"):
        original, other = (source / name).lstat(), (target / name).lstat()
        assert (original.st_mode, original.st_mtime_ns) == (other.st_mode, other.st_mtime_ns)
    assert (target / "fifo").is_fifo()
    assert (target / "link").readlink() == (source / "link").readlink()
    # Nothing is replaced.
    again = subprocess.run(
        [runner, "--copy", str(source), str(target)], check=False, capture_output=True, text=True
    )
    assert again.returncode == 1
    assert again.stderr
