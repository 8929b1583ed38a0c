"""policy.max.* and policy.allow_network: said by the operator, in any of the ways of a setting."""

from __future__ import annotations

import pytest

from sandkasten.daemon.settings.resolver import load
from sandkasten.errors import InvalidConfiguration
from sandkasten.model.sandbox.limits import MIB


def test_there_is_no_ceiling_and_no_network_unless_somebody_says_so(tmp_path):
    policy = load({}, {}, tmp_path).policy
    assert (dict(policy.ceiling), policy.allow_network) == ({}, False)


def test_a_ceiling_is_said_in_a_file_or_a_variable(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        "policy:\n  allow_network: true\n  max:\n    mem_limit_mb: 2048\n    cpu_limit: 1.5\n"
    )
    policy = load({}, {"SANDKASTEN_POLICY_MAX_PIDS_LIMIT": "300"}, tmp_path).policy
    assert policy.ceiling == {"mem_limit_mb": 2048, "cpu_limit": 1.5, "pids_limit": 300}
    assert policy.allow_network is True


def test_the_old_name_for_a_default_is_no_consent(tmp_path):
    environ = {"STATION_SANDBOX_ALLOW_NETWORK_DEFAULT": "true"}
    assert load({}, environ, tmp_path).policy.allow_network is False


def test_a_default_that_nobody_said_comes_down_to_the_ceiling(tmp_path):
    settings = load({"policy.max.mem_limit_mb": "256"}, {}, tmp_path)
    assert settings.policy.limits.memory_bytes == 256 * MIB
    shown = {one.name: one.value for one in settings.origins()}
    assert shown["defaults.mem_limit_mb"] == 256


def test_a_default_over_the_ceiling_is_refused(tmp_path):
    flags = {"policy.max.mem_limit_mb": "256", "defaults.mem_limit_mb": "512"}
    with pytest.raises(InvalidConfiguration) as caught:
        load(flags, {}, tmp_path)
    assert caught.value.message == (
        "defaults.mem_limit_mb (512) is more than policy.max.mem_limit_mb (256)"
    )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e30"])
def test_a_ceiling_that_no_limit_can_have_is_refused_by_name(tmp_path, value):
    with pytest.raises(InvalidConfiguration, match=r"policy\.max\.mem_limit_mb"):
        load({"policy.max.mem_limit_mb": value}, {}, tmp_path)
