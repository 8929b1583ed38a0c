"""The cluster of a run of the suites, with their images: one for all workers, removed at the end.

TEST_SANDKASTEN_KUBECONFIG names it for the workers. If this variable is set when a run begins, the
run uses that cluster, and leaves it as it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

KUBECONFIG = "TEST_SANDKASTEN_KUBECONFIG"

_ours: list[Cluster] = []


def start() -> str:
    """Start the cluster unless there is one. Return why none can be started; empty when one is."""
    if os.environ.get(KUBECONFIG):
        return ""
    # Every run of tests imports this module, and few need a cluster.
    from tests.cluster import programs
    from tests.cluster.cluster import Cluster
    from tests.kubernetes import cluster_images

    if why := programs.missing():
        return why
    made = Cluster().__enter__()
    _ours.append(made)
    cluster_images.stock(made, "debian")
    os.environ[KUBECONFIG] = str(made.kubeconfig)
    return ""


def close() -> None:
    while _ours:
        os.environ.pop(KUBECONFIG, None)
        _ours.pop().__exit__()
