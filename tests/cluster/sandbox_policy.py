"""The NetworkPolicies of the guide, applied to the test cluster for a daemon on this machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster import programs

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

_GUIDE = programs.REPOSITORY / "docs" / "guides" / "kubernetes.md"
# An address that is public, at which a server of the test answers over TCP and UDP.
PUBLIC = "9.9.9.9"
SERVER = """
import socket, sys, threading
def serve(address):
    tcp = socket.create_server(address)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(address)
    def echo():
        while True:
            udp.sendto(b"udp", udp.recvfrom(4096)[1])
    threading.Thread(target=echo, daemon=True).start()
    while True:
        client, _ = tcp.accept()
        client.sendall(b"tcp")
        client.close()
for host in sys.argv[2:]:
    threading.Thread(target=serve, args=((host, int(sys.argv[1])),)).start()
"""
SERVED = 8080
CLOSED, FULL = "sandkasten-closed", "sandkasten-full"
_PATH = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"


def documented(name: str) -> dict[str, Any]:
    """Return the policy of a name in the guide."""
    for block in re.findall(r"```yaml\n(.*?)```", _GUIDE.read_text(), re.DOTALL):
        for one in yaml.safe_load_all(block):
            # A snippet of rules alone is a list.
            if isinstance(one, dict) and one.get("kind") == "NetworkPolicy":
                found: dict[str, Any] = one
                if found["metadata"]["name"] == name:
                    return found
    raise LookupError(f"the guide shows no {name}")


def apply(
    cluster: Cluster,
    name: str = CLOSED,
    namespace: str = "default",
    made: dict[str, Any] | None = None,
) -> None:
    """Apply a policy of the guide, or `made` in its place."""
    made = made or documented(name)
    made["metadata"]["namespace"] = namespace
    made["spec"]["ingress"][0]["from"] = [
        {"ipBlock": {"cidr": f"{cluster.machine.our_address}/32"}}
    ]
    cluster.api.ask("POST", _PATH.format(namespace), made)


def remove(cluster: Cluster, name: str = CLOSED, namespace: str = "default") -> None:
    cluster.api.ask("DELETE", f"{_PATH.format(namespace)}/{name}")
