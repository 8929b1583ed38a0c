"""Which session a request may join: every option and every limit has a rule."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from sandkasten.model.sandbox.limits import MIB, Limits
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.session_joins import (
    LIMIT_SCOPES,
    OPTION_RULES,
    Difference,
    JoinTerms,
    SessionShape,
    differences,
    variables,
)

SHAPE = SessionShape("host", "local", "hardened", "none", Limits(), "sandbox", 60.0, 600.0)


def test_every_option_and_every_limit_has_a_rule():
    assert set(OPTION_RULES) == {one.name for one in fields(SandboxOptions)}
    assert set(LIMIT_SCOPES) == {one.name for one in fields(Limits)}
    compared = {name for _, name in OPTION_RULES.values()}
    assert compared == {one.name for one in fields(SessionShape)}


def test_a_request_that_names_nothing_joins_any_session():
    session = replace(
        SHAPE,
        image="other",
        network="full",
        limits=Limits(memory_bytes=16 * MIB),
        profile="dev",
        pip_packages=("a",),
    )
    assert differences(SHAPE, session, JoinTerms(SandboxOptions())) == ()


@pytest.mark.parametrize("opened", ["full", {"allow": ["a.org"]}])
def test_a_file_that_names_no_network_does_not_join_one_that_has_it(opened):
    session = replace(SHAPE, network=opened)
    [found] = differences(SHAPE, session, JoinTerms(SandboxOptions(), complete=True))
    assert (found.field, found.wanted) == ("network", "none")
    wanted = replace(SHAPE, network=opened)
    named = JoinTerms(SandboxOptions(network=opened), complete=True)
    assert differences(wanted, SHAPE, named)[0].has == "none"
    assert differences(wanted, session, named) == ()


def test_the_order_of_rules_and_packages_has_no_meaning():
    one = {"allow": ["a.org", "b.org"]}
    other = {"allow": ["b.org", "a.org"]}
    terms = JoinTerms(SandboxOptions(network=one, pip_packages=("x", "y")))
    assert differences(replace(SHAPE, network=one), replace(SHAPE, network=other), terms) == ()


def test_a_share_of_the_tenants_quota_is_not_a_difference():
    shared = {"allow": ["*"], "limits": {"connections": 8, "bandwidth_bps": 100}}
    wanted = replace(SHAPE, network="full")
    terms = JoinTerms(SandboxOptions(network="full"))
    assert differences(wanted, replace(SHAPE, network=shared), terms) == ()
    less = {"allow": ["*"], "limits": {"connections": 8, "bytes_out": 5}}
    [found] = differences(wanted, replace(SHAPE, network=less), terms)
    assert found.has == '{"allow": ["*"], "limits": {"bytes_out": 5}}'
    named = replace(SHAPE, network={"allow": ["*"], "limits": {"connections": 9}})
    assert differences(named, replace(SHAPE, network=shared), terms) != ()


def test_a_limit_that_is_named_must_be_the_same_and_one_that_is_not_is_the_least():
    small = replace(SHAPE, limits=Limits(memory_bytes=64 * MIB))
    large = replace(SHAPE, limits=Limits(memory_bytes=1024 * MIB))
    complete = JoinTerms(SandboxOptions(), complete=True)
    assert differences(SHAPE, large, complete) == ()
    assert differences(SHAPE, small, complete) == (
        Difference("limits.mem_limit_mb", "at least 512", "64"),
    )
    named = JoinTerms(SandboxOptions(limits={"memory_mb": 64}))
    assert differences(small, SHAPE, named) == (Difference("limits.memory_mb", "64", "512"),)
    assert differences(small, small, named) == ()


def test_limits_of_commands_are_not_the_sessions():
    session = replace(SHAPE, limits=Limits(exec_timeout_s=1, stdout_bytes=1, tool_files=0))
    assert differences(SHAPE, session, JoinTerms(SandboxOptions(), complete=True)) == ()


def test_times_are_the_least_and_labels_must_be_there():
    terms = JoinTerms(SandboxOptions(ttl_seconds=60, labels={"a": "1"}))
    wanted = replace(SHAPE, labels={"a": "1"})
    longer = replace(SHAPE, idle_timeout_s=90.0, labels={"a": "1", "b": "2"})
    assert differences(wanted, longer, terms) == ()
    shorter = replace(SHAPE, idle_timeout_s=30.0)
    assert differences(wanted, shorter, terms) == (
        Difference("ttl_seconds", "at least 60 s", "30 s"),
        Difference("labels.a", "1", "none"),
    )


def test_an_environment_is_compared_without_its_values():
    terms = JoinTerms(SandboxOptions(env={"A": "1"}))
    wanted = replace(SHAPE, env=variables("sbx_1", {"A": "1"}))
    assert differences(wanted, wanted, terms) == ()
    other = replace(SHAPE, env=variables("sbx_1", {"A": "2"}))
    assert differences(wanted, other, terms) == (Difference("env", "A", "A with other values"),)
    assert differences(wanted, SHAPE, terms) == (Difference("env", "A", "none"),)
    assert "2" not in variables("sbx_1", {"A": "2"}).names


def test_packages_are_named_and_messages_are_short():
    terms = JoinTerms(SandboxOptions(pip_packages=("pandas",), gpus="all"))
    wanted = replace(SHAPE, pip_packages=("pandas",), gpus="all")
    session = replace(SHAPE, pip_packages=tuple(f"package-{n}" for n in range(100)))
    found = differences(wanted, session, terms)
    assert [(one.field, one.wanted) for one in found] == [
        ("pip_packages", "pandas"),
        ("gpus", "all"),
    ]
    assert found[0].has.startswith("package-0, package-1,")
    assert len(found[0].has) <= 300


def test_what_an_older_version_did_not_record_agrees():
    terms = JoinTerms(SandboxOptions(hostname="a", npm_packages=("x",)))
    wanted = replace(SHAPE, hostname="a", npm_packages=("x",))
    assert differences(wanted, replace(SHAPE, hostname=None, npm_packages=None), terms) == ()
