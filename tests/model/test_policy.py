"""The operator's rules: what a request gets, and what is refused by name."""

from __future__ import annotations

import math

import pytest

from sandkasten.errors import InvalidRequest, UnsupportedByBackend
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.policy import (
    Lease,
    Policy,
    check_profile_on,
    checked_hostname,
    checked_profile,
    checked_session_key,
    lease_for,
)
from sandkasten.model.sandbox.sandbox_options import SandboxOptions


def test_the_smallest_idle_time_is_used():
    policy = Policy(ttl_s=1800, idle_timeout_s=900, lifetime_s=3600)
    assert lease_for(SandboxOptions(), policy) == Lease(900, 3600)
    assert lease_for(SandboxOptions(ttl_seconds=1200), policy) == Lease(1200, 3600)
    assert lease_for(SandboxOptions(ttl_seconds=60, idle_timeout_seconds=30), policy) == Lease(
        30, 3600
    )
    assert lease_for(SandboxOptions(lifetime_seconds=10), policy) == Lease(10, 10)


@pytest.mark.parametrize("field", ["ttl_seconds", "idle_timeout_seconds", "lifetime_seconds"])
@pytest.mark.parametrize("value", [0, -5, 14_401, True, math.nan])
def test_a_lease_outside_the_operators_range_is_refused(field, value):
    with pytest.raises(InvalidRequest):
        lease_for(SandboxOptions(**{field: value}), Policy())


def test_the_hardened_profile_is_the_default_and_dev_needs_an_image():
    assert checked_profile(None) == checked_profile("hardened") == "hardened"
    assert checked_profile("dev") == "dev"
    check_profile_on("hardened", Image("host"))
    check_profile_on("dev", Image("debian", "layers"))
    with pytest.raises(UnsupportedByBackend) as refused:
        check_profile_on("dev", Image("host"))
    assert "dev" in refused.value.message
    assert refused.value.hint
    with pytest.raises(InvalidRequest) as unknown:
        checked_profile("hardend")
    assert unknown.value.hint == "did you mean hardened?"


@pytest.mark.parametrize("name", ["a", "box-1", "B" * 63, "0"])
def test_a_label_is_a_host_name(name):
    assert checked_hostname(name) == name


def test_the_default_host_name_is_sandbox():
    assert checked_hostname(None) == "sandbox"


@pytest.mark.parametrize("name", ["", "-a", "a-", "a.b", "a_b", "ä", "a\n", "a" * 64, 3])
def test_a_name_that_is_not_a_label_is_refused(name):
    with pytest.raises(InvalidRequest) as refused:
        checked_hostname(name)
    assert refused.value.details == {"field": "hostname"}
    assert refused.value.hint


@pytest.mark.parametrize("key", ["", "a\nb", "a\0b", "k" * 257, 7])
def test_a_session_key_that_could_not_be_read_back_is_refused(key):
    with pytest.raises(InvalidRequest):
        checked_session_key(key)


def test_a_session_key_may_be_any_printable_string():
    assert checked_session_key("workflow:7:größe & co") == "workflow:7:größe & co"
    assert checked_session_key(None) is None
