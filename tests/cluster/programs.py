"""Where the programs of a cluster are, which `scripts/cluster_build.sh` builds or unpacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PLACE = REPOSITORY / "build" / "cluster"
_MODULES = Path(__file__).parent / "kubernetes" / "go.mod"
_VERSION = _MODULES.read_text().partition("k8s.io/kubernetes ")[2].split()[0]
KUBERNETES = PLACE / f"kubernetes-{_VERSION}"
_HELM_MODULES = Path(__file__).parent / "helm" / "go.mod"
HELM = PLACE / f"helm-{_HELM_MODULES.read_text().partition('helm.sh/helm/v3 ')[2].split()[0]}"
_ROUTER_MODULES = Path(__file__).parent / "kube-router" / "go.mod"
_ROUTER = _ROUTER_MODULES.read_text().partition("kube-router/v2 ")[2].split()[0]
DEBIAN = PLACE / "debian"
CNI = DEBIAN / "usr" / "lib" / "cni"
_AGENT_SANDBOX = (Path(__file__).parent / "agent-sandbox" / "go.mod").read_text()
_REQUIRED = "TEST_SANDKASTEN_CLUSTER"
"""Set to 1 by `make test-cluster`, where a program that is not there is a failure."""
_SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")


def missing() -> str:
    """Return why no cluster can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "starting a cluster needs root"
    needed = ("unshare", "nsenter", "ip", "openssl", "gcc")
    lacking = [name for name in needed if not shutil.which(name)]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    built = [KUBERNETES / name for name in _SERVERS]
    built += [etcd(), containerd(), ctr(), runc(), CNI / "bridge", helm(), policy_controller()]
    built += [agent_sandbox(), ipset()]
    lacking = [path.name for path in built if not path.exists()]
    return f"not built: {', '.join(lacking)} (scripts/cluster_build.sh)" if lacking else ""


def require() -> None:
    """Skip the test if no cluster can be started here; fail it in `make test-cluster`."""
    # Here, because `make bench` uses this module in an environment without it.
    import pytest

    if why := missing():
        (pytest.fail if os.environ.get(_REQUIRED) == "1" else pytest.skip)(why)


def server(name: str) -> str:
    return str(KUBERNETES / name)


def agent_sandbox() -> Path:
    """Return the directory with the controller of agent-sandbox and its manifests."""
    version = _AGENT_SANDBOX.partition("sigs.k8s.io/agent-sandbox ")[2].split()[0]
    return PLACE / f"agent-sandbox-{version}"


def etcd() -> Path:
    return DEBIAN / "usr" / "bin" / "etcd"


def containerd() -> Path:
    return DEBIAN / "usr" / "bin" / "containerd"


def ctr() -> Path:
    return DEBIAN / "usr" / "bin" / "ctr"


def helm() -> Path:
    return HELM / "helm"


def policy_controller() -> Path:
    """Return what enforces NetworkPolicy."""
    return PLACE / f"kube-router-{_ROUTER}" / "policy-controller"


def ipset() -> Path:
    """Return a program that the policy controller uses."""
    return DEBIAN / "usr" / "sbin" / "ipset"


def libraries() -> Path:
    """Return the directory of the libraries of `ipset`."""
    return next(DEBIAN.glob("usr/lib/*/libipset.so.*")).parent


def runc() -> Path:
    return DEBIAN / "usr" / "sbin" / "runc"
