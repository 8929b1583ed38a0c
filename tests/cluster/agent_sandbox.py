"""agent-sandbox in a test cluster: its kinds, its rights, and its controller as a process.

`with AgentSandbox(cluster):` installs it and removes it again, with every Sandbox. It has no
webhook: each kind has one version that is used here, so nothing has to be converted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import yaml

from tests.cluster import programs
from tests.cluster.kube_api import ApiError, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

_NAMESPACE = "agent-sandbox-system"
_NAME = "agent-sandbox-controller"
_KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
_AT = "/apis/agents.x-k8s.io/v1beta1/namespaces/{}/sandboxes"


class AgentSandbox:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._api = cluster.api
        self._controller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> AgentSandbox:
        for kind in self._kinds():
            self._api.ask("POST", _KINDS, kind)
        self._api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        account = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts"
        self._api.ask("POST", account, {"metadata": {"name": _NAME}})
        for right in self._rights():
            self._api.ask("POST", f"{_RIGHTS}/{right['kind'].lower()}s", right)
        token = self._api.ask("POST", f"{account}/{_NAME}/token", {"spec": {}})["status"]["token"]
        self._cluster.write_kubeconfig(self._kubeconfig, token)
        wait_for(
            lambda: self._api.ask("GET", _KINDS)["items"],
            lambda kinds: all(map(_is_established, kinds)),
            lambda kinds: f"kinds are not established: {[one.get('status') for one in kinds]}",
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for kind in self._kinds():
            self._delete(f"{_KINDS}/{kind['metadata']['name']}")
        for right in self._rights():
            self._delete(f"{_RIGHTS}/{right['kind'].lower()}s/{right['metadata']['name']}")
        self._delete(f"/api/v1/namespaces/{_NAMESPACE}")
        wait_for(
            lambda: [one["metadata"]["name"] for one in self._api.ask("GET", _KINDS)["items"]],
            lambda left: not left,
            lambda left: f"kinds are not removed: {left}",
        )

    # ---- the controller

    @property
    def _kubeconfig(self) -> Any:
        return self._cluster.folder / "agent-sandbox.kubeconfig"

    def start(self) -> None:
        """Start the controller, also after it was killed."""
        words = [
            str(programs.agent_sandbox() / _NAME),
            *("--kubeconfig", str(self._kubeconfig)),
            *("--enable-webhook=false", "--leader-elect=false"),
            *("--metrics-bind-address=0", "--health-probe-bind-address=0"),
        ]
        log = self._cluster.folder / "agent-sandbox.log"
        self._controller = self._cluster.machine.start(words, log)

    def kill(self) -> None:
        """Simulate a crash of the controller."""
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()
            self._controller = None

    # ---- Sandbox objects

    def sandboxes(self, namespace: str = "default") -> list[Any]:
        return list(self._api.ask("GET", _AT.format(namespace))["items"])

    def create(self, sandbox: Any, namespace: str = "default") -> Any:
        return self._api.ask("POST", _AT.format(namespace), sandbox)

    def change(self, name: str, spec: dict[str, Any], namespace: str = "default") -> None:
        path = f"{_AT.format(namespace)}/{name}"
        self._api.ask("PATCH", path, {"spec": spec}, kind="application/merge-patch+json")

    def delete(self, name: str, namespace: str = "default") -> None:
        self._api.ask("DELETE", f"{_AT.format(namespace)}/{name}")

    # ---- its files

    def _kinds(self) -> Iterator[Any]:
        for path in sorted((programs.agent_sandbox() / "crds").glob("*.yaml")):
            kind = yaml.load(path.read_text(), yaml.CSafeLoader)
            # The API server would ask a webhook for every conversion.
            kind["spec"].pop("conversion", None)
            yield kind

    def _rights(self) -> Iterator[Any]:
        path = programs.agent_sandbox() / "rbac.generated.yaml"
        yield from yaml.safe_load_all(path.read_text())
        yield {
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": _NAME,
            },
            "subjects": [{"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}],
        }

    def _delete(self, path: str) -> None:
        with contextlib.suppress(ApiError):
            self._api.ask("DELETE", path)


def _is_established(kind: Any) -> bool:
    conditions = kind.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
