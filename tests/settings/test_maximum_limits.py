"""policy.max.* and policy.allow_network, from every source of a setting."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.sandbox.limit_names import CEILING_NAMES, LIMIT_NAMES
from sandkasten.model.sandbox.limits import MIB
from sandkasten_runtime.assembly.settings.limit_settings import LimitCeilings, LimitDefaults
from sandkasten_runtime.assembly.settings.resolver import load


def test_the_default_has_no_maximum_limits_and_no_network(tmp_path):
    policy = load({}, {}, tmp_path).policy
    assert (dict(policy.ceiling), policy.allow_network) == ({}, False)


def test_every_limit_has_a_default_and_every_ceiling_a_maximum():
    aliases = {"cpu_millicores", "memory_mb"}
    # Set in milliseconds, as `defaults.max_exec_timeout_ms`.
    milliseconds = {"max_exec_timeout_seconds"}
    defaults = {one.name for one in fields(LimitDefaults)}
    assert defaults == set(LIMIT_NAMES) - aliases - milliseconds
    assert {one.name for one in fields(LimitCeilings)} == set(CEILING_NAMES)


def test_a_maximum_limit_is_set_in_a_file_or_a_variable(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        "policy:\n  allow_network: true\n  max:\n    mem_limit_mb: 2048\n    cpu_limit: 1.5\n"
    )
    policy = load({}, {"SANDKASTEN_POLICY_MAX_PIDS_LIMIT": "300"}, tmp_path).policy
    assert policy.ceiling == {"mem_limit_mb": 2048, "cpu_limit": 1.5, "pids_limit": 300}
    assert policy.allow_network is True


def test_an_implicit_default_is_lowered_to_the_maximum(tmp_path):
    settings = load({"policy.max.mem_limit_mb": "256"}, {}, tmp_path)
    assert settings.policy.limits.memory_bytes == 256 * MIB
    shown = {one.name: one.value for one in settings.origins()}
    assert shown["defaults.mem_limit_mb"] == 256


def test_an_explicit_default_over_the_maximum_is_refused(tmp_path):
    flags = {"policy.max.mem_limit_mb": "256", "defaults.mem_limit_mb": "512"}
    with pytest.raises(InvalidConfiguration) as caught:
        load(flags, {}, tmp_path)
    assert caught.value.message == (
        "defaults.mem_limit_mb (512) is more than policy.max.mem_limit_mb (256)"
    )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e30"])
def test_a_maximum_outside_the_valid_range_is_refused_by_name(tmp_path, value):
    with pytest.raises(InvalidConfiguration, match=r"policy\.max\.mem_limit_mb"):
        load({"policy.max.mem_limit_mb": value}, {}, tmp_path)
