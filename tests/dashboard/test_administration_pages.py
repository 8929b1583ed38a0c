"""Pages of keys, the audit and the daemon itself, in a browser on a real daemon."""

from __future__ import annotations

import json

import pytest

from tests.client.http.served import served
from tests.dashboard.scenarios import played
from tests.patience import FAR_TOO_LATE_S

pytestmark = [
    pytest.mark.promise("P88"),
    pytest.mark.root,
    pytest.mark.long(reason="a browser takes a minute"),
    pytest.mark.timeout(10 * FAR_TOO_LATE_S),
]


def test_keys_are_made_and_revoked_and_the_audit_is_read(tmp_path):
    nowhere = {"host": f"unix://{tmp_path}/nowhere.sock"}
    west = {"west": {**nowhere, "labels": {"zone": "eu"}, "max_sandboxes": 5}}
    engines = {"SANDKASTEN_DOCKER_ENGINES": json.dumps(west)}
    with served(tmp_path / "data", backend="local", **engines) as daemon:
        played("administration", daemon)
