"""The manifests of deploy/kubernetes install two daemons that work on a real cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import built_images
from tests.cluster.installation import (
    NAMESPACE,
    SANDBOXES,
    Installation,
    ask,
    manifests,
    on_this_cluster,
    secret,
)
from tests.cluster.kube_api import ApiError, KubeApi
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.timeout(built_images.PATIENCE_S),
    pytest.mark.promise("P105"),
]


@pytest.fixture(scope="module")
def installed(cluster_with_daemon: Cluster, store_url: str) -> Iterator[Installation]:
    cluster = cluster_with_daemon
    made = Installation(cluster)
    try:
        first, second, *others = on_this_cluster(cluster, manifests())
        for one in (first, second, secret(store_url), *others):
            cluster.api.apply(one)
        made.wait_until_rolled_out()
        yield made
    finally:
        made.remove()


@pytest.fixture
def session(installed: Installation) -> Iterator[str]:
    """The path of a session that the first replica has created."""
    made = ask(installed.endpoints()[0], "POST", "/v1/sessions", {})
    path = f"/v1/sessions/{made['id']}"
    yield path
    ask(installed.endpoints()[0], "DELETE", path)


def _run(address: str, session: str, command: str) -> str:
    done = ask(address, "POST", f"{session}/exec", {"cmd": command})
    assert done["exit_code"] == 0, done
    return str(done["stdout"])


def test_both_replicas_are_ready_on_different_nodes(installed: Installation) -> None:
    pods = installed.pods()
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
    assert sorted(installed.endpoints()) == sorted(pod["status"]["podIP"] for pod in pods)
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods] == [0, 0]


def test_a_session_works_at_both_replicas(installed: Installation, session: str) -> None:
    one, other = installed.endpoints()
    assert _run(one, session, "cd /tmp && export WHERE=here && id -u") == "1000\n"
    assert _run(other, session, "echo $WHERE $PWD") == "here /tmp\n"


def test_a_replica_says_that_it_can_create_sandboxes(installed: Installation) -> None:
    for address in installed.endpoints():
        assert ask(address, "GET", "/readyz")["backend"] == "kubernetes"
        found = ask(address, "GET", "/v1/doctor")
        missing = [one for one in found["requirements"] if one["required"] and not one["ok"]]
        assert missing == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/sandkasten", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods", None),
        ("GET", "/api/v1/namespaces/kube-system/secrets", None),
        ("GET", "/api/v1/pods", None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces", None),
        ("GET", f"/api/v1/namespaces/{SANDBOXES}/configmaps", None),
        ("DELETE", f"/api/v1/namespaces/{SANDBOXES}/pods", None),
        ("PATCH", f"/api/v1/namespaces/{SANDBOXES}/pods/none", {}),
        ("POST", f"/api/v1/namespaces/{SANDBOXES}/serviceaccounts/default/token", {}),
        ("DELETE", f"/apis/networking.k8s.io/v1/namespaces/{SANDBOXES}/networkpolicies/x", None),
    ],
)
def test_the_daemon_has_no_other_rights(
    account: KubeApi, method: str, path: str, body: dict[str, Any] | None
) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(ApiError) as refused:
        account.ask(method, path, body, kind=kind)
    assert refused.value.status == 403


def test_the_daemon_has_the_rights_of_its_role(account: KubeApi) -> None:
    assert account.pods(namespace=SANDBOXES) == []


@pytest.fixture(scope="module")
def account(installed: Installation) -> KubeApi:
    """A client with the rights of the daemon's service account."""
    api = installed.cluster.api
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/sandkasten/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return api.acting_as(api.ask("POST", path, request)["status"]["token"])


@pytest.mark.parametrize("namespace", [NAMESPACE, SANDBOXES])
def test_pod_security_is_enforced_in_both_namespaces(
    installed: Installation, namespace: str
) -> None:
    open_pod = {
        "metadata": {"name": "open"},
        "spec": {"containers": [{"name": "main", "image": "none", "command": ["true"]}]},
    }
    with pytest.raises(ApiError) as refused:
        installed.cluster.api.create_pod(open_pod, namespace)
    assert refused.value.status == 403
    assert "violates PodSecurity" in str(refused.value)


def test_the_daemon_runs_without_privileges_on_a_read_only_root(installed: Installation) -> None:
    name = installed.pods()[0]["metadata"]["name"]
    script = """
        grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status
        touch /opt/x 2>/dev/null || echo read-only
    """
    done = installed.cluster.api.run_in(name, ["sh", "-c", script], namespace=NAMESPACE)
    assert done.stdout.decode().split("\n") == [
        "Uid:\t10001\t10001\t10001\t10001",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "read-only",
        "",
    ]


def test_a_rolling_restart_loses_no_session(installed: Installation, session: str) -> None:
    before = {pod["metadata"]["uid"] for pod in installed.pods()}
    _run(installed.endpoints()[0], session, "export KEPT=1; sleep 1000 & echo $! >/tmp/job")
    installed.restart()
    refused, answered = _used_until(installed, session, before)
    assert answered > 0
    assert refused == []
    after = {pod["metadata"]["uid"] for pod in installed.wait_until_rolled_out()}
    assert len(after) == 2
    assert not after & before
    for address in installed.endpoints():
        assert _run(address, session, "kill -0 $(cat /tmp/job) && echo $KEPT") == "1\n"


def _used_until(installed: Installation, session: str, before: set[str]) -> tuple[list[str], int]:
    """Use a session at the endpoints of the Service until no Pod of `before` is left; return the
    requests that failed, and how many did not.
    """
    refused, answered = [], 0
    deadline = time.monotonic() + 3 * FAR_TOO_LATE_S
    while before & {pod["metadata"]["uid"] for pod in installed.pods()}:
        assert time.monotonic() < deadline, "the restart does not end"
        for address in installed.endpoints():
            try:
                assert _run(address, session, "echo $KEPT") == "1\n"
                answered += 1
            except OSError as exc:
                refused.append(f"{address}: {exc}")
    return refused, answered


@pytest.mark.parametrize("name", ["quota", "autoscaler", "workspaces"])
def test_the_api_server_accepts_an_optional_object(installed: Installation, name: str) -> None:
    *_, optional = manifests(name)
    made = installed.cluster.api.apply(optional, dry_run=True)
    assert made["metadata"]["uid"]


def test_a_service_monitor_needs_a_kind_that_this_cluster_lacks(installed: Installation) -> None:
    *_, optional = manifests("service-monitor")
    with pytest.raises(ApiError) as refused:
        installed.cluster.api.apply(optional, dry_run=True)
    assert refused.value.status == 404
