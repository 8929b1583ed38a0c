"""Pods of a test cluster without anything of ours in them, driven over the Kubernetes API.

A Pod has one container, closed like those of a sandbox. One is plain, and one has a volume to
write to, as a sandbox has: the kubelet looks whether volumes are mounted every 0.3 s, so every Pod
with a volume waits at least that long.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.kube_api import KubeApi, is_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from sandkasten_kubernetes.api.cluster_client import ClusterClient

# The first process of a container ends by SIGTERM only if it says so.
_SLEEP: Final = "trap 'exit 0' TERM; sleep 1000000 & wait"


def missing() -> str:
    """Return why no cluster can be started here; empty when one can."""
    from tests.cluster import programs

    return programs.missing()


class BarePods:
    def __init__(self, client: ClusterClient, kubeconfig: Path, image: str) -> None:
        self._client = client
        self._api = KubeApi.of(kubeconfig)
        self._image = image

    async def create(self, *, volume: bool = False) -> str:
        """Create a Pod and wait until it is ready; return its name."""
        name = f"bare-{secrets.token_hex(4)}"
        manifest = await self._client.create("pods", _manifest(name, self._image, volume=volume))
        await self._until(manifest, lambda what, pod: is_ready(pod))
        return name

    async def exec_true(self, name: str) -> None:
        """Run a command by the protocol of `kubectl exec`."""
        stream = await self._client.stream(name, "main", ("/bin/true",))
        try:
            assert await stream.receive(1) == b""
        finally:
            await stream.aclose()

    async def destroy(self, name: str) -> None:
        """Delete a Pod and wait until it is gone."""
        pod = await self._client.get("pods", name)
        await self._client.delete("pods", name, grace_s=1)
        await self._until(pod, lambda what, _: what == "DELETED")

    async def spread(self) -> dict[str, int]:
        """Return how many Pods of the namespace each node has."""
        pods = await asyncio.to_thread(self._api.pods)
        return dict(Counter(str(pod["spec"].get("nodeName")) for pod in pods))

    async def _until(
        self, pod: Mapping[str, Any], good: Callable[[str, Mapping[str, Any]], bool]
    ) -> None:
        metadata = pod["metadata"]
        events = self._client.watch("pods", metadata["name"], metadata["resourceVersion"])
        try:
            async for what, current in events:
                if good(what, current):
                    return
        finally:
            await events.aclose()
        raise TimeoutError(f"Pod {metadata['name']}: the watch has ended")


def _manifest(name: str, image: str, *, volume: bool) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", _SLEEP],
        "resources": {
            "limits": {"cpu": "1", "memory": "512Mi"},
            "requests": {"cpu": "1m", "memory": "1Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "workspace", "mountPath": "/workspace"}] if volume else [],
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "workspace", "emptyDir": {}}] if volume else [],
        },
    }
