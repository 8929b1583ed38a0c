"""Two tenants with a namespace each, and a third in that of all others, at two replicas.

The replicas have the rights of the plain manifests: a Role in each namespace, and none elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten.model.ids import new_sandbox_id
from sandkasten_kubernetes.tenant_namespaces import TenantNamespaces
from sandkasten_runtime.assembly.backend_registry import read_nested
from tests.cluster.installation import manifests
from tests.cluster.kube_api import ApiError, path_of, wait_for
from tests.cluster.replicas import Replicas, replicas
from tests.cluster.sandbox_backend import SPEC
from tests.daemon.process import DaemonProcess, ask
from tests.kubernetes import cluster_images
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.cluster.kube_api import KubeApi

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.promise("P109"),
    pytest.mark.timeout(300),
]
ACME, BETA, OTHERS = "boxes-acme", "boxes-beta", "boxes"
# The settings name it in all of these tests, and it does not exist.
MISSING = "boxes-missing"


@dataclass(frozen=True, slots=True)
class Namespaces:
    api: KubeApi
    kubeconfig: Path

    def binding(self, namespace: str) -> dict[str, Any]:
        return next(one for one in _of_a_tenant(namespace) if one["kind"] == "RoleBinding")

    def names(self, namespace: str) -> list[str]:
        return [one["metadata"]["name"] for one in self.api.pods("sandkasten=cell", namespace)]


def _of_a_tenant(namespace: str) -> list[dict[str, Any]]:
    """Return the objects of the plain manifests for a tenant, without quota and policy."""
    made = []
    for one in manifests("tenant"):
        about = one["metadata"]
        ours = "sandboxes-acme" in (about["name"], about.get("namespace"))
        if not ours or one["kind"] in ("ResourceQuota", "NetworkPolicy"):
            continue
        text = json.dumps(one).replace("sandboxes-acme", namespace)
        # The account of the daemon is in the namespace of the other tenants.
        made.append(
            json.loads(text.replace('"namespace": "sandkasten"', f'"namespace": "{OTHERS}"'))
        )
    return made


def _delete(api: KubeApi, thing: dict[str, Any]) -> None:
    try:
        api.ask("DELETE", path_of(thing))
    except ApiError as exc:
        if exc.status != 404:
            raise


@pytest.fixture(scope="module")
def namespaces(
    cluster_with_images: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Namespaces]:
    """The namespaces, and a kubeconfig with the rights of the daemon."""
    api = cluster_with_images.api
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "sandkasten", "namespace": OTHERS},
    }
    with ExitStack() as stack:
        for name in (OTHERS, ACME, BETA):
            for one in _of_a_tenant(name):
                api.apply(one)
                if one["kind"] == "Namespace":
                    stack.callback(_delete, api, one)
        api.apply(account)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = api.ask("POST", f"{path_of(account)}/token", request)["status"]["token"]
        config = json.loads(cluster_with_images.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = tmp_path_factory.mktemp("account") / "kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        yield Namespaces(api, path)


@pytest.fixture
async def pair(cluster_with_images, postgres_server, tmp_path, namespaces):
    settings = {
        "SANDKASTEN_KUBERNETES_KUBECONFIG": str(namespaces.kubeconfig),
        "SANDKASTEN_KUBERNETES_NAMESPACE": OTHERS,
        "SANDKASTEN_KUBERNETES_TENANT_NAMESPACES": f"acme={ACME},beta={BETA},mute={MISSING}",
    }
    async with replicas(cluster_with_images, postgres_server, tmp_path, **settings) as found:
        yield found


@dataclass(frozen=True, slots=True)
class Tenant:
    """A client with a key of one tenant."""

    pair: Replicas
    headers: dict[str, str]

    @classmethod
    async def of(cls, pair: Replicas, name: str) -> Tenant:
        body = {"tenant": name, "name": name, "scopes": ["sessions"]}
        made = await pair.ask(pair.daemons[0], "POST", "/v1/keys", body)
        found = cls(pair, {"Authorization": f"Bearer {made['key']}"})
        async with asyncio.timeout(PATIENCE_S):
            # The other replica is told of the key.
            while (await found.ask(pair.daemons[1], "GET", "/v1/sessions"))[0] != 200:
                pass
        return found

    async def ask(
        self, at: DaemonProcess, method: str, path: str, body: object = None
    ) -> tuple[int, Any]:
        return await ask(self.pair.http, method, at.url + path, body, headers=self.headers)

    async def create(self, at: DaemonProcess) -> str:
        status, made = await self.ask(at, "POST", "/v1/sessions", {})
        assert status == 201, made
        return str(made["id"])

    async def run(self, at: DaemonProcess, the_id: str, command: str) -> str:
        path = f"/v1/sessions/{the_id}/exec"
        status, done = await self.ask(at, "POST", path, {"cmd": command})
        assert status == 200, done
        return str(done["stdout"])


@pytest.fixture
async def tenant(pair) -> AsyncIterator[Callable[[str], Awaitable[Tenant]]]:
    """Make a tenant. At the end, all sessions of tenants are destroyed."""
    made: list[Tenant] = []

    async def make(name: str) -> Tenant:
        made.append(await Tenant.of(pair, name))
        return made[-1]

    yield make
    for one in made:
        at = pair.daemons[0]
        for session in (await one.ask(at, "GET", "/v1/sessions"))[1]:
            status, told = await one.ask(at, "DELETE", f"/v1/sessions/{session['id']}")
            assert status < 300, told


def pod(the_id: str) -> str:
    return the_id.replace("_", "-")


async def test_every_replica_finds_the_sandboxes_of_all_namespaces(pair, namespaces, tenant):
    one, other = pair.daemons
    places = {"acme": ACME, "beta": BETA, "gamma": OTHERS}
    tenants = {name: await tenant(name) for name in places}
    made = {}
    for name, its in tenants.items():
        made[name] = await its.create(one)
        assert namespaces.names(places[name]) == [pod(made[name])]
        assert await its.run(one, made[name], f"mark={name}; echo $mark") == f"{name}\n"
    for at in pair.daemons:
        await at.kill()
    for at in pair.daemons:
        await at.start()
    for at in pair.daemons:
        for name, its in tenants.items():
            assert await its.run(at, made[name], "echo $mark") == f"{name}\n"
    # Another tenant's is unknown, wherever it is.
    status, _ = await tenants["acme"].ask(other, "GET", f"/v1/sessions/{made['beta']}")
    assert status == 404
    for name, its in tenants.items():
        status, _ = await its.ask(other, "DELETE", f"/v1/sessions/{made[name]}")
        assert status < 300
    assert await pair.objects() == []


async def test_a_full_quota_is_that_of_one_tenant(pair, namespaces, tenant):
    one, other = pair.daemons
    acme, beta = [await tenant(name) for name in ("acme", "beta")]
    first = await acme.create(one)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": ACME},
        "spec": {"hard": {"pods": "1"}},
    }
    namespaces.api.apply(quota)
    try:
        await asyncio.to_thread(_wait_until_used, namespaces.api, quota, "1")
        for at in pair.daemons:
            status, told = await acme.ask(at, "POST", "/v1/sessions", {})
            assert (status, told["code"]) == (507, "QUOTA_EXCEEDED"), told
            assert await beta.run(at, await beta.create(at), "echo there") == "there\n"
        assert namespaces.names(ACME) == [pod(first)]
        await acme.ask(other, "DELETE", f"/v1/sessions/{first}")
        await asyncio.to_thread(_wait_until_used, namespaces.api, quota, "0")
    finally:
        _delete(namespaces.api, quota)
    await acme.create(one)


def _wait_until_used(api: KubeApi, quota: dict[str, Any], pods: str) -> None:
    wait_for(
        lambda: api.ask("GET", path_of(quota)).get("status") or {},
        lambda status: (status.get("used") or {}).get("pods") == pods,
        lambda status: f"the quota says {status}",
    )


async def test_a_namespace_without_rights_stops_one_tenant_and_loses_nothing(
    pair, namespaces, tenant
):
    one, other = pair.daemons
    acme, beta = [await tenant(name) for name in ("acme", "beta")]
    kept, lost, unseen = await acme.create(one), await beta.create(one), await beta.create(other)
    await acme.run(one, kept, "mark=1")
    _delete(namespaces.api, namespaces.binding(ACME))
    try:
        await asyncio.to_thread(_wait_for_rights, namespaces, allowed=False)
        status, told = await acme.ask(one, "POST", "/v1/sessions", {})
        assert (status, told["code"]) == (503, "BACKEND_UNAVAILABLE"), told
        assert ACME in told["message"]
        assert ACME in told["hint"]
        doctor = await pair.ask(one, "GET", "/v1/doctor")
        lines = {one["name"]: one for one in doctor["requirements"]}
        assert lines[f"permissions in {BETA}"]["ok"]
        missing = lines[f"permissions in {ACME}"]
        assert (missing["ok"], missing["required"]) == (False, False)
        assert doctor["ready"], doctor
        # A connection needs no rights.
        assert await acme.run(one, kept, "echo $mark") == "1\n"
        # Other tenants are served, also by a replica that starts now, and their ends are noticed.
        await other.kill()
        await other.start()
        assert await beta.run(other, unseen, "echo there") == "there\n"
        await beta.run(other, await beta.create(other), "true")
        namespaces.api.delete_pod(pod(lost), BETA)
        async with asyncio.timeout(2 * FAR_TOO_LATE_S):
            while (await beta.ask(other, "GET", f"/v1/sessions/{lost}"))[0] != 410:
                pass
        # What became of this one, the new replica cannot tell; it does not say that it is gone.
        status, told = await acme.ask(other, "GET", f"/v1/sessions/{kept}")
        assert (status, told["status"]) == (200, "running"), told
        status, told = await acme.ask(other, "POST", f"/v1/sessions/{kept}/exec", {"cmd": ["true"]})
        assert (status, told["code"]) == (503, "BACKEND_UNAVAILABLE"), told
    finally:
        namespaces.api.apply(namespaces.binding(ACME))
        await asyncio.to_thread(_wait_for_rights, namespaces, allowed=True)
    assert await acme.run(other, kept, "echo $mark") == "1\n"


def _wait_for_rights(namespaces: Namespaces, *, allowed: bool) -> None:
    """Wait until the API server has seen the change of a binding."""
    token = json.loads(namespaces.kubeconfig.read_text())["users"][0]["user"]["token"]
    account = namespaces.api.acting_as(token)

    def may() -> bool:
        try:
            account.pods(namespace=ACME)
        except ApiError:
            return False
        return True

    wait_for(may, lambda found: found is allowed, lambda found: f"rights: {found}")


async def test_a_namespace_that_does_not_exist_is_named(
    pair, tenant, cluster_with_images, tmp_path
):
    status, told = await (await tenant("mute")).ask(pair.daemons[0], "POST", "/v1/sessions", {})
    assert (status, told["code"]) == (503, "BACKEND_UNAVAILABLE"), told
    assert MISSING in told["hint"]
    # An account that may do everything is told that it does not exist.
    options = replace(
        cluster_images.options(str(cluster_with_images.kubeconfig)),
        namespace="default",
        tenant_namespaces={"mute": MISSING},
    )
    backend = TenantNamespaces(tmp_path, options, read_nested)
    try:
        with pytest.raises(BackendUnavailable, match=f'"{MISSING}" not found') as refused:
            await backend.create(new_sandbox_id(), replace(SPEC, place=MISSING))
        assert refused.value.hint.startswith(f"create namespace {MISSING}")
        assert list(await backend.owned()) == []
    finally:
        await backend.aclose()


async def test_the_daemon_has_rights_in_the_named_namespaces_only(namespaces):
    token = json.loads(namespaces.kubeconfig.read_text())["users"][0]["user"]["token"]
    account = namespaces.api.acting_as(token)
    for name in (OTHERS, ACME, BETA):
        account.pods(namespace=name)
        for kind in ("resourcequotas", "configmaps", "serviceaccounts"):
            with pytest.raises(ApiError, match="403"):
                account.ask("GET", f"/api/v1/namespaces/{name}/{kind}")
    for path in ("/api/v1/namespaces/default/pods", "/api/v1/namespaces", "/api/v1/pods"):
        with pytest.raises(ApiError, match="403"):
            account.ask("GET", path)
    body = {"apiVersion": "v1", "kind": "Namespace"}
    with pytest.raises(ApiError, match="403"):
        account.ask(
            "POST", "/api/v1/namespaces", {**body, "metadata": {"name": secrets.token_hex(4)}}
        )
