"""The NetworkPolicy of the guide, applied to the test cluster for a daemon on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster import programs

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

_GUIDE = programs.REPOSITORY / "docs" / "guides" / "kubernetes.md"
_PATH = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"


def documented(kind: str) -> dict[str, Any]:
    """Return the first object of a kind in the guide."""
    for block in re.findall(r"```yaml\n(.*?)```", _GUIDE.read_text(), re.DOTALL):
        for one in yaml.safe_load_all(block):
            if one.get("kind") == kind:
                found: dict[str, Any] = one
                return found
    raise LookupError(f"the guide shows no {kind}")


def apply(cluster: Cluster, namespace: str = "default") -> None:
    made = documented("NetworkPolicy")
    made["metadata"]["namespace"] = namespace
    made["spec"]["ingress"][0]["from"] = [
        {"ipBlock": {"cidr": f"{cluster.machine.our_address}/32"}}
    ]
    cluster.api.ask("POST", _PATH.format(namespace), made)


def remove(cluster: Cluster, namespace: str = "default") -> None:
    name = documented("NetworkPolicy")["metadata"]["name"]
    cluster.api.ask("DELETE", f"{_PATH.format(namespace)}/{name}")
