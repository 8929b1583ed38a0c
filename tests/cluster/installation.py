"""Sandkasten on the test cluster, as deploy/ installs it.

What a platform engineer would set for a cluster of their own is set here: the Secret, an image for
sandboxes, and what this cluster lacks. It has no kube-proxy, so Pods reach the API server at its
own address; no controller for NetworkPolicy; and few processors.
"""

from __future__ import annotations

import base64
import json
import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster.cluster import BUSYBOX, PORT
from tests.cluster.kube_api import ApiError, is_ready, path_of, wait_for
from tests.patience import FAR_TOO_LATE_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.cluster.cluster import Cluster

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PLAIN = DEPLOY / "kubernetes"
NAMESPACE, SANDBOXES = "sandkasten", "sandboxes"
API_KEY = f"sk-{secrets.token_hex(24)}"
OF_THIS_CLUSTER: dict[str, Any] = {
    "default_image": BUSYBOX,
    "backends": {"kubernetes": {"network_policy": "assumed", "overcommit": 100}},
}
_HTTP_PORT = 8080
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SELECTOR = "app.kubernetes.io/name=sandkasten"


def manifests(*optional: str) -> list[dict[str, Any]]:
    """Return the objects that `kubectl apply -k` applies, and those of the named optional files."""
    listed = yaml.safe_load((PLAIN / "kustomization.yaml").read_text())["resources"]
    files = [*listed, *(f"optional/{one}.yaml" for one in optional)]
    return [one for file in files for one in yaml.safe_load_all((PLAIN / file).read_text())]


def on_this_cluster(cluster: Cluster, objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects with the settings and variables that this cluster needs."""
    made = []
    for one in objects:
        if one["kind"] == "ConfigMap":
            settings = yaml.safe_load(one["data"]["sandkasten.yaml"])
            merged = yaml.safe_dump(_merged(settings, OF_THIS_CLUSTER))
            one = {**one, "data": {"sandkasten.yaml": merged}}
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["env"] += variables(cluster)
        if one["kind"] == "NetworkPolicy" and one["metadata"]["namespace"] == NAMESPACE:
            one["spec"]["ingress"][0]["from"].append(client(cluster))
        made.append(one)
    return made


def variables(cluster: Cluster) -> list[dict[str, str]]:
    """Return what leads Pods to the API server without kube-proxy."""
    return [
        {"name": "KUBERNETES_SERVICE_HOST", "value": cluster.machine.address},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(PORT)},
    ]


def client(cluster: Cluster) -> dict[str, Any]:
    """Return the tests as a peer of a NetworkPolicy: they ask replicas at their own addresses."""
    return {"ipBlock": {"cidr": f"{cluster.machine.our_address}/32"}}


def secret(store_url: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """Return the Secret that the operator creates."""
    content = {"api-key": API_KEY, "store-url": store_url}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sandkasten", "namespace": namespace},
        "data": {key: base64.b64encode(one.encode()).decode() for key, one in content.items()},
    }


def _merged(below: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = _merged(made[key], value) if both else value
    return made


@dataclass(frozen=True, slots=True)
class Installation:
    cluster: Cluster
    namespace: str = NAMESPACE
    sandboxes: tuple[str, ...] = (SANDBOXES,)

    def deployment(self) -> Any:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/sandkasten"
        return self.cluster.api.ask("GET", path)

    def pods(self) -> list[Any]:
        return self.cluster.api.pods(_SELECTOR, self.namespace)

    def wait_until_rolled_out(self) -> list[Any]:
        """Wait until all replicas are of the newest revision and ready; return their Pods."""
        wait_for(
            self.deployment,
            _is_rolled_out,
            lambda found: f"{json.dumps(found['status'])}\n{self._told()}",
            3 * FAR_TOO_LATE_S,
        )
        return wait_for(
            self.pods,
            lambda pods: all(map(is_ready, pods)) and not any(map(_is_ending, pods)),
            lambda pods: f"Pods do not end: {[one['status'] for one in pods]}",
            2 * FAR_TOO_LATE_S,
        )

    def endpoints(self) -> list[str]:
        """Return the addresses to which the Service leads now."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        query = "labelSelector=kubernetes.io/service-name=sandkasten"
        return [
            address
            for part in self.cluster.api.ask("GET", f"{path}?{query}")["items"]
            for one in part["endpoints"] or ()
            if one["conditions"]["ready"]
            for address in one["addresses"]
        ]

    def restart(self) -> None:
        """Do what `kubectl rollout restart` does."""
        note = {"tests/restarted": secrets.token_hex(4)}
        body = {"spec": {"template": {"metadata": {"annotations": note}}}}
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/sandkasten"
        self.cluster.api.ask("PATCH", path, body, kind="application/merge-patch+json")

    def remove(self) -> None:
        """Remove its namespaces with everything in them."""
        for name in (self.namespace, *self.sandboxes):
            thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            try:
                self.cluster.api.ask("DELETE", path_of(thing))
            except ApiError as exc:
                if exc.status != 404:
                    raise
        # Nothing of them needs to end in good order.
        for name in (self.namespace, *self.sandboxes):
            for pod in self.cluster.api.pods(namespace=name):
                self.cluster.api.delete_pod(pod["metadata"]["name"], name)
        wait_for(
            lambda: {
                one["metadata"]["name"]
                for one in self.cluster.api.ask("GET", "/api/v1/namespaces")["items"]
            },
            lambda left: not left & {self.namespace, *self.sandboxes},
            lambda left: f"namespaces do not end: {left}",
            3 * FAR_TOO_LATE_S,
        )

    def _told(self) -> str:
        """Return what the Pods and their last lines say, for the message of a failure."""
        told = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            told.append(f"{name}: {json.dumps(pod['status'])}")
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?tailLines=20"
            try:
                told.append(self.cluster.api.ask("GET", path, raw=True).decode(errors="replace"))
            except ApiError as exc:
                told.append(str(exc))
        return "\n".join(told)


def ask(address: str, method: str, path: str, body: object = None, key: str = API_KEY) -> Any:
    """Ask a replica as a client does; raise OSError where it gives no answer or refuses."""
    request = urllib.request.Request(
        f"http://{address}:{_HTTP_PORT}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with _DIRECTLY.open(request, timeout=FAR_TOO_LATE_S) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as exc:
        raise OSError(f"{method} {path}: {exc.code} {exc.read().decode()}") from exc


def _is_rolled_out(deployment: Any) -> bool:
    status, wanted = deployment["status"], deployment["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = [status.get(one, 0) for one in ("replicas", "updatedReplicas", "readyReplicas")]
    return seen and counts == [wanted] * 3


def _is_ending(pod: Any) -> bool:
    return "deletionTimestamp" in pod["metadata"]
