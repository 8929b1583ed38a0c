"""The smallest provisioner of volumes: each claim of our classes gets a directory of this machine.

Both nodes of the cluster see the same files, so a volume can be written from both. `with
VolumeProvisioner(cluster)` makes the StorageClasses; a volume and its directory go with their
claim.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import threading
from typing import TYPE_CHECKING, Any

from tests.cluster.kube_api import ApiError, wait_for
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster

CLASS = "directories"
FULL = "full"
_PROVISIONER = "sandkasten.test/directories"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/persistentvolumeclaims"


class VolumeProvisioner:
    """`CLASS` gives volumes, and `FULL` never has room for one."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self._folder = cluster.folder / "volumes"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="volumes")

    def __enter__(self) -> VolumeProvisioner:
        self._folder.mkdir(exist_ok=True)
        for name in (CLASS, FULL):
            self._api.ask(
                "POST",
                _CLASSES,
                {
                    "metadata": {"name": name},
                    "provisioner": _PROVISIONER,
                    "allowVolumeExpansion": name == CLASS,
                },
            )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        for name in (CLASS, FULL):
            self._api.ask("DELETE", f"{_CLASSES}/{name}")

    def volumes(self) -> list[str]:
        """Return the volumes of claims."""
        return [one["metadata"]["name"] for one in self._listed(_VOLUMES)]

    def wait_until_empty(self) -> None:
        wait_for(
            lambda: (self.volumes(), self._listed(_CLAIMS)),
            lambda found: found == ([], []),
            lambda found: f"left in the cluster: {found}",
        )

    def directory(self, claim: str) -> Path:
        """Return the directory of a claim of the default namespace."""
        return (
            self._folder
            / self._api.ask("GET", f"/api/v1/namespaces/default/persistentvolumeclaims/{claim}")[
                "metadata"
            ]["uid"]
        )

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            # The API server may be away, and an object may change while it is looked at.
            with contextlib.suppress(ApiError, OSError, http.client.HTTPException):
                self._look()

    def _look(self) -> None:
        for claim in self._listed(_CLAIMS):
            wanted = claim["spec"].get("storageClassName")
            if claim.get("status", {}).get("phase") != "Pending":
                continue
            if wanted == CLASS:
                self._provide(claim)
            elif wanted == FULL:
                self._refuse(claim)
        for volume in self._listed(_VOLUMES):
            if volume.get("status", {}).get("phase") == "Released":
                name = volume["metadata"]["name"]
                shutil.rmtree(self._folder / name, ignore_errors=True)
                self._api.ask("DELETE", f"{_VOLUMES}/{name}")

    def _provide(self, claim: Any) -> None:
        about = claim["metadata"]
        place = self._folder / about["uid"]
        # As a new file system is: root's. The kubelet gives it to the group of the Pod.
        place.mkdir(mode=0o755, exist_ok=True)
        here = {"key": "kubernetes.io/hostname", "operator": "Exists"}
        self._api.ask(
            "POST",
            _VOLUMES,
            {
                "metadata": {
                    "name": about["uid"],
                    "annotations": {"pv.kubernetes.io/provisioned-by": _PROVISIONER},
                },
                "spec": {
                    "accessModes": claim["spec"]["accessModes"],
                    "capacity": claim["spec"]["resources"]["requests"],
                    "storageClassName": CLASS,
                    "persistentVolumeReclaimPolicy": "Delete",
                    "claimRef": {
                        "namespace": about["namespace"],
                        "name": about["name"],
                        "uid": about["uid"],
                    },
                    "local": {"path": str(place)},
                    "nodeAffinity": {
                        "required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
                    },
                },
            },
        )

    def _refuse(self, claim: Any) -> None:
        about = claim["metadata"]
        told = {
            "metadata": {"name": f"{about['name']}.full"},
            "involvedObject": {
                "kind": "PersistentVolumeClaim",
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "reason": "ProvisioningFailed",
            "message": "not enough space in the pool",
            "type": "Warning",
            # Later than what the controllers of the cluster say of the claim.
            "lastTimestamp": "2100-01-01T00:00:00Z",
        }
        with contextlib.suppress(ApiError):
            self._api.ask("POST", f"/api/v1/namespaces/{about['namespace']}/events", told)

    def _listed(self, path: str) -> list[Any]:
        return list(self._api.ask("GET", path)["items"])
