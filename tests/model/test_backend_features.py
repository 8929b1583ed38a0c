"""What each backend can do: one row for each, and the same as what requests are checked by."""

from __future__ import annotations

import pytest

from sandkasten.daemon.settings.backends.backend_names import BACKENDS
from sandkasten.model.backends.backend_features import (
    ALL_LIMITS,
    ALL_NETWORKS,
    FEATURES,
    BackendFeatures,
    features_of,
    isolation_of,
    supported,
    unsupported,
)
from sandkasten.model.sandbox import gpus
from sandkasten.model.sandbox.isolation_levels import has_inspection, has_network, strength

pytestmark = pytest.mark.promise("P05")


def test_every_backend_has_its_row():
    # Tests register one more.
    assert set(FEATURES) == set(BACKENDS) - {"unisolated"}


@pytest.mark.parametrize("name", FEATURES)
def test_row_says_what_requests_are_checked_by(name):
    has = FEATURES[name]
    assert has.summary
    assert set(has.networks) <= set(ALL_NETWORKS)
    assert set(has.limits) <= set(ALL_LIMITS)
    assert (has.networks != ("none",)) is has_network(name)
    assert has.secrets is has_inspection(name)
    assert has.gpus is (name in gpus.BACKENDS)


def test_isolation_is_the_strongest_level_that_a_backend_satisfies():
    assert {name: isolation_of(name) for name in ("local", "gvisor")} == {
        "local": "standard",
        "gvisor": "gvisor",
    }
    assert strength("something") == 0
    assert isolation_of("something") == "unknown"


def test_what_is_not_supported_is_named_and_nothing_is_named_twice():
    for has in (*FEATURES.values(), BackendFeatures()):
        can, cannot = supported(has), unsupported(has)
        assert not set(can) & set(cannot)
    assert "GPUs" in unsupported(features_of("local"))
    assert "network none, full, rules" in supported(features_of("local"))
    assert "limits pids, workspace" in unsupported(features_of("kubernetes"))
    assert supported(features_of("something")) == []
