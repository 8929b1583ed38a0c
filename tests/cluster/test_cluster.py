"""The cluster of the tests is a real one, and leaves nothing."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import programs
from tests.cluster.cluster import BUSYBOX, Cluster
from tests.cluster.kube_api import ApiError, KubeApi, is_ready, wait_for
from tests.engines import keeper
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)")

# A container's first process ends by SIGTERM only if it says so.
_SERVE = "trap 'exit 0' TERM; echo $0 >/tmp/name; while :; do nc -l -p 8080 </tmp/name & wait; done"
BURST = 12


def _pod(name: str, *, node: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _SERVE, name],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        "resources": {"limits": {"memory": "64Mi", "cpu": "1"}, "requests": {"cpu": "1m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "16Mi"}}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


@contextmanager
def _running(api: KubeApi, *pods: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the Pods when they are ready, and remove them."""
    names = [pod["metadata"]["name"] for pod in pods]
    try:
        for pod in pods:
            api.create_pod(pod)
        yield [api.ready_pod(name) for name in names]
    finally:
        for name in names:
            api.delete_pod(name)
        wait_for(
            lambda: [pod["metadata"]["name"] for pod in api.pods()],
            lambda left: not set(left) & set(names),
            lambda left: f"Pods do not end: {left}",
        )


def _heard(address: str) -> str:
    """Return what the Pod says, which listens a moment after it is ready."""

    def listen() -> str:
        try:
            with socket.create_connection((address, 8080), timeout=PATIENCE_S) as heard:
                return heard.makefile().readline()
        except ConnectionRefusedError:
            return ""

    return wait_for(listen, bool, lambda _: f"{address} refuses connections")


def _name() -> str:
    return f"pod-{secrets.token_hex(4)}"


def test_a_pod_runs_on_each_node_and_answers_at_its_address(cluster, api):
    wanted = {_name(): node.name for node in cluster.nodes}
    pods = [_pod(name, node=node) for name, node in wanted.items()]
    with _running(api, *pods) as ready:
        assert {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in ready} == wanted
        for pod in ready:
            assert _heard(pod["status"]["podIP"]) == f"{pod['metadata']['name']}\n"


def test_a_pod_reaches_a_pod_of_the_other_node(cluster, api):
    first, second = (_pod(_name(), node=node.name) for node in cluster.nodes)
    with _running(api, first, second) as (one, other):
        listen = 'until nc -w 10 "$0" 8080; do sleep 0.1; done'
        words = ["sh", "-c", listen, other["status"]["podIP"]]
        done = api.run_in(one["metadata"]["name"], words)
        assert (done.stdout, done.code) == (f"{other['metadata']['name']}\n".encode(), 0)


def test_the_bridge_of_a_node_keeps_its_address_when_pods_come_and_go(cluster):
    node = cluster.nodes[0]

    def ethernet() -> str:
        (bridge,) = json.loads(node.run("ip", "-json", "link", "show", "pods"))
        return bridge["address"]

    before = ethernet()
    lowest = ("ip", "link", "add", "lowest", "address", "00:00:00:00:00:01")
    node.run(*lowest, "type", "veth", "peer", "name", "peer")
    try:
        node.run("ip", "link", "set", "lowest", "master", "pods")
        assert ethernet() == before
    finally:
        node.run("ip", "link", "del", "lowest")


def test_exec_returns_output_input_and_exit_code(api):
    name = _name()
    with _running(api, _pod(name)):
        script = "cat; echo wrong >&2; exit 3"
        done = api.run_in(name, ["sh", "-c", script], stdin=b"\0\xffin")
        assert (done.stdout, done.stderr, done.code) == (b"\0\xffin", b"wrong\n", 3)
        assert api.run_in(name, ["id", "-u"]).stdout == b"1000\n"


def test_a_burst_of_pods_spreads_over_both_nodes(cluster, api):
    pods = [_pod(_name()) for _ in range(BURST)]
    with _running(api, *pods) as ready:
        spread = Counter(pod["spec"]["nodeName"] for pod in ready)
    assert set(spread) == {node.name for node in cluster.nodes}
    assert sum(spread.values()) == BURST


def test_memory_limit_ends_the_container(api):
    name = _name()
    eater = _pod(name)
    eater["spec"]["containers"][0]["command"] = ["sh", "-c", "tail /dev/zero"]
    try:
        api.create_pod(eater)
        ended = wait_for(
            lambda: api.pod(name)["status"],
            lambda status: status["phase"] == "Failed",
            lambda status: f"the Pod did not fail: {status}",
        )
        assert ended["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
    finally:
        api.delete_pod(name)


def test_a_killed_kubelet_comes_back_to_the_same_containers(cluster, api):
    node, name = cluster.nodes[0], _name()
    with _running(api, _pod(name, node=node.name)) as (before,):
        node.kill_kubelet()
        node.start_kubelet()
        wait_for(lambda: _answers(api, name), bool, lambda _: "the kubelet does not come back")
        after = api.pod(name)["status"]["containerStatuses"][0]
        assert after == before["status"]["containerStatuses"][0]


def _answers(api: KubeApi, name: str) -> bool:
    try:
        return api.run_in(name, ["true"]).code == 0
    except ApiError:
        return False


@pytest.mark.timeout(300)
def test_a_node_without_network_is_noticed_and_comes_back(cluster, api):
    node, name = cluster.nodes[1], _name()
    with _running(api, _pod(name, node=node.name)) as (pod,):
        node.cut_off()
        try:
            wait_for(
                lambda: [one["metadata"]["name"] for one in api.nodes() if not is_ready(one)],
                lambda lost: lost == [node.name],
                lambda lost: f"not ready: {lost}",
                seconds=2 * PATIENCE_S,
            )
        finally:
            node.reconnect()
        cluster.wait_until_ready()
        assert _heard(pod["status"]["podIP"]) == f"{name}\n"


def test_a_user_without_rights_is_refused(cluster, tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    cluster.write_kubeconfig(kubeconfig, "wrong")
    with pytest.raises(ApiError) as refused:
        KubeApi.of(kubeconfig).pods()
    assert refused.value.status == 401


def test_a_cluster_leaves_nothing():
    programs.require()
    before = _found(_DEFAULTS)
    with Cluster() as made:
        name = _name()
        made.api.create_pod(_pod(name))
        assert is_ready(made.api.ready_pod(name))
        inside = [pid for node in made.nodes for pid in node.processes()]
        assert len(inside) >= 2
        folder, link, cgroup = made.folder, made.machine.link, made.machine.cgroup
        assert link in _said("ip", "route")
    assert not folder.exists()
    assert _found(_DEFAULTS) == before
    assert link not in _said("ip", "route")
    assert link not in _said("ip", "link")
    assert list(keeper._groups(cgroup)) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    marked = [*keeper._marked(folder), *(pid for pid in inside if _lives(pid))]
    assert marked == []


# Where its programs write by default, and hostwatch does not look.
_DEFAULTS = ("/usr/libexec/kubernetes", "/var/log/pods", "/var/log/containers")


def _found(paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state != b"Z"
