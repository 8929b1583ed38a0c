"""The capabilities of each backend agree with themselves."""

from __future__ import annotations

import pytest

from sandkasten.model.backends.backend_features import (
    ALL_LIMITS,
    ALL_NETWORKS,
    BackendFeatures,
    supported,
    unsupported,
)
from sandkasten.model.backends.capabilities import UNKNOWN
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES, PLUGINS, capabilities_of

pytestmark = pytest.mark.promise("P05")


def test_no_two_plugins_have_the_same_name():
    assert len(CAPABILITIES) == len(PLUGINS)


@pytest.mark.parametrize("name", CAPABILITIES)
def test_capabilities_of_a_backend_agree(name):
    can = CAPABILITIES[name]
    has = can.features
    assert has.summary
    assert set(has.networks) <= set(ALL_NETWORKS)
    assert set(has.limits) <= set(ALL_LIMITS)
    assert can.has_network is (has.networks != ("none",))
    assert can.run_once is not has.sessions
    assert can.strength > 0
    # A platform has images of its own, and decides about networks.
    assert can.external is can.own_images is can.refuses_networks
    # Without a value in the settings, nothing is closed and nothing is anywhere else.
    assert (can.closed, can.default_place) == (None, "")


def test_isolation_is_the_strongest_level_that_a_backend_satisfies():
    levels = {name: capabilities_of(name).isolation for name in ("local", "gvisor", "docker/west")}
    assert levels == {"local": "standard", "gvisor": "gvisor", "docker/west": "standard"}
    assert capabilities_of("something") == UNKNOWN
    assert (UNKNOWN.strength, UNKNOWN.isolation) == (0, "unknown")


def test_what_is_not_supported_is_named_and_nothing_is_named_twice():
    for features in (*(can.features for can in CAPABILITIES.values()), BackendFeatures()):
        can, cannot = supported(features), unsupported(features)
        assert not set(can) & set(cannot)
    local, kubernetes = CAPABILITIES["local"].features, CAPABILITIES["kubernetes"].features
    assert "GPUs" in unsupported(local)
    assert "network none, full, rules" in supported(local)
    assert "limits pids, workspace" in unsupported(kubernetes)
    assert supported(BackendFeatures()) == []
