"""The network of a Pod by class: a label that the operator's NetworkPolicies select. Pure.

`closed` reaches nothing. `full` reaches what the operator's policy for that class allows: public
addresses, and neither the cluster nor a metadata service. Kubernetes decides only by addresses:
in this class there are no rules by name, limits, counters or records. `rules` has all that: our
egress process is between the sandbox and what the policy allows (`network/pod_egress.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.network_limits import Allowance, NetworkLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten_kubernetes.kubernetes_options import KubernetesOptions

CLOSED: Final = "closed"
FULL: Final = "full"
RULES: Final = "rules"
METADATA: Final = "169.254.169.254:80"
"""Where most clouds serve credentials of a node."""
KUBELET_PORT: Final = 10250
UNENFORCED: Final = Unenforced(
    "network",
    "the NetworkPolicies of the cluster decide about this network: its connections are not "
    "limited, counted or recorded",
    "use backend local, oci, gvisor or docker",
)
_OTHER_BACKEND: Final = "use backend local, oci, gvisor or docker, or network: none"
# A sandbox without a network has no name server, but Kubernetes requires an address.
_NO_RESOLVER: Final = "127.0.0.1"
_DNS_PORT: Final = "53"


def network_class(policy: NetworkPolicy, options: KubernetesOptions) -> str:
    """Return the value of the label. `refusal` has accepted the policy."""
    if policy.closed:
        return CLOSED
    return RULES if options.network_rules else FULL


def classes(options: KubernetesOptions) -> frozenset[str]:
    """Return every class that a sandbox can have."""
    if options.network_rules:
        return frozenset({CLOSED, RULES})
    return frozenset({CLOSED, FULL} if options.network_full else {CLOSED})


def refusal(policy: NetworkPolicy, options: KubernetesOptions) -> UnsupportedByBackend | None:
    """Return the error for a network that no class has; None if the Pod can have it."""
    if policy.closed:
        return None
    if options.network_rules:
        if not policy.inspected:
            return None
        return _refused("does not support secrets and inspection of a network", _OTHER_BACKEND)
    if not options.network_full:
        return _refused(
            "does not give sandboxes a network",
            "set backends.kubernetes.networks.full: true and apply the NetworkPolicy for it "
            "(docs/guides/kubernetes.md), for network: full; or networks.rules for rules; "
            f"or {_OTHER_BACKEND}",
        )
    if not policy.full or policy.deny or policy.dry_run or policy.inspected:
        return _refused(
            "does not support rules, secrets and inspection of a network",
            "request network: full, or set backends.kubernetes.networks.rules: true; or "
            f"{_OTHER_BACKEND}",
        )
    if policy.limits != NetworkLimits() or policy.allowance not in (None, Allowance()):
        return _refused(
            "does not limit what a sandbox sends and receives, and a limit is set: by the "
            "request, network.limits or the tenant's quota",
            "remove the limit, or set backends.kubernetes.networks.rules: true; or "
            f"{_OTHER_BACKEND}",
        )
    return None


def policy_hint(name: str) -> str:
    """Return what to do about a Pod of a class that reaches what it must not reach."""
    remedy = "apply the NetworkPolicy in docs/guides/kubernetes.md"
    if name != CLOSED:
        remedy += f" for the class {name}, with your API server, nodes and Pods in its except"
    return (
        f"{remedy}, on a cluster whose network plugin enforces it; "
        "backends.kubernetes.network_policy: assumed skips this check"
    )


def _refused(what: str, hint: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(f"backend kubernetes {what}", hint=hint, backend="kubernetes")


def names(spec: CellSpec, options: KubernetesOptions) -> dict[str, Any]:
    """Return the part of the Pod's spec that sets how names are resolved."""
    if spec.network.closed:
        return {"dnsPolicy": "None", "dnsConfig": {"nameservers": [_NO_RESOLVER]}}
    if network_class(spec.network, options) == RULES:
        # For the egress process. The sandbox asks that, and it knows the operator's names.
        return {"dnsPolicy": "ClusterFirst"}
    hosts = [
        {"ip": address, "hostnames": [name]}
        for name, addresses in spec.ceiling.hosts.items()
        for address in addresses
    ]
    aliases: dict[str, Any] = {"hostAliases": hosts} if hosts else {}
    servers = [server.rpartition(":") for server in spec.ceiling.servers]
    # The resolver of a Pod uses no other port.
    usual = [host.strip("[]") for host, _, port in servers if port == _DNS_PORT]
    if usual:
        return {**aliases, "dnsPolicy": "None", "dnsConfig": {"nameservers": usual[:3]}}
    # A name with a dot is looked up as it is first, and then as one of the cluster.
    option = {"name": "ndots", "value": "1"}
    return {**aliases, "dnsPolicy": "ClusterFirst", "dnsConfig": {"options": [option]}}


def out_of_reach(nodes: Iterable[str]) -> list[str]:
    """Return what a Pod of class `full` must not reach, besides the API server and other Pods.

    `nodes`: addresses.
    """
    kubelets = [
        f"[{node}]:{KUBELET_PORT}" if ":" in node else f"{node}:{KUBELET_PORT}"
        for node in sorted(set(nodes) - {""})
    ]
    return [METADATA, *kubelets]
