"""A real API server answers as it did when the calls of the backend were recorded.

`python -m tests.cluster record` records them again, on a cluster of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster import call_recording
from tests.kubernetes.recorded import recorded_calls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.cluster import Cluster
    from tests.kubernetes.recorded.recorded_calls import RecordedCall

pytestmark = [
    pytest.mark.long("starts a Kubernetes of two nodes (make test-cluster)"),
    pytest.mark.timeout(300),
]


@pytest.mark.promise("P100")
async def test_the_calls_of_the_backend_are_the_recorded_ones(cluster: Cluster, tmp_path: Path):
    known, now = recorded_calls.read(), await call_recording.record(cluster, tmp_path)
    assert now.version == known.version
    for name, calls in known.scenes.items():
        assert _steady(now.scenes[name]) == _steady(calls), f"{name}: {recorded_calls.RENEW}"


def _steady(calls: list[RecordedCall]) -> list[tuple[object, ...]]:
    """Return the calls that time does not change: when a Sandbox is deleted, the cluster removes
    its Pod and its Secret, and the backend may come before or after it.
    """
    deletes = [
        at for at, one in enumerate(calls) if one.method == "DELETE" and "sandboxes" in one.path
    ]
    return [one.outline() for one in calls[: deletes[0] + 1 if deletes else None]]
