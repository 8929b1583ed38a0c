"""The operator's rules that choose a backend: what matches, and that isolation never weakens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkasten.errors import InvalidConfiguration, PolicyDenied
from sandkasten.model.backends.backend_rules import (
    BackendRule,
    RuleSubject,
    check_rules,
    in_order,
    match,
)
from sandkasten.model.sandbox.isolation_levels import MINIMA, weakest_of
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES, capabilities_of

pytestmark = pytest.mark.promise("P118")

ACME = RuleSubject(("python", "python:3.11-slim"), {"team": "research"}, "acme", "reviewer")


def strength(backend: str) -> int:
    return capabilities_of(backend).strength


NAMES = st.sampled_from((*CAPABILITIES, "never-examined"))
USES = st.lists(NAMES, min_size=1, max_size=6, unique=True).map(tuple)


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (BackendRule(("oci",)), True),
        (BackendRule(("oci",), images=("python:*",)), True),
        (BackendRule(("oci",), images=("node*", "py*")), True),
        (BackendRule(("oci",), images=("node*",)), False),
        (BackendRule(("oci",), labels={"team": "*"}), True),
        (BackendRule(("oci",), labels={"team": "research", "tier": "*"}), False),
        (BackendRule(("oci",), labels={"team": "sales"}), False),
        (BackendRule(("oci",), tenants=("beta", "acme")), True),
        (BackendRule(("oci",), tenants=("acm",)), False),
        (BackendRule(("oci",), agents=("review*",)), True),
        (BackendRule(("oci",), agents=("writer",)), False),
        (BackendRule(("oci",), images=("python",), tenants=("beta",)), False),
    ],
)
def test_rule_matches_if_all_its_conditions_do(rule, matches):
    assert rule.matches(ACME) is matches


def test_condition_on_an_agent_matches_no_request_without_an_installed_agent():
    assert not BackendRule(("oci",), agents=("*",)).matches(RuleSubject(tenant="acme"))
    assert BackendRule(("oci",)).matches(RuleSubject(tenant="acme"))


def test_image_of_which_only_the_id_is_known_does_not_avoid_a_rule_about_names():
    rules = (
        BackendRule(("oci",), images=("deadbeef*",), labels={"by": "id"}),
        BackendRule(("gvisor",), images=("ml/*",), tenants=("acme",), only=True),
        BackendRule(("local",)),
    )
    unknown = RuleSubject(("sha256:0123456789",), tenant="acme", unnamed=True)
    with pytest.raises(PolicyDenied, match="policy.backends.1. compares names") as refused:
        match(rules, unknown)
    assert refused.value.details["rule"] == "policy.backends[1]"
    other = match(rules, RuleSubject(("sha256:0123456789",), tenant="beta", unnamed=True))
    assert other is not None
    assert other.rule.use == ("local",)
    listed = match(rules, RuleSubject(("deadbeef01",), {"by": "id"}, "acme", unnamed=True))
    assert listed is not None
    assert listed.rule.use == ("oci",)


def test_first_matching_rule_decides_and_is_named_by_its_place():
    rules = (
        BackendRule(("gvisor",), tenants=("beta",)),
        BackendRule(("oci",), tenants=("acme",)),
        BackendRule(("docker",)),
    )
    found = match(rules, ACME)
    assert found is not None
    assert (found.name, found.rule.use) == ("policy.backends[1]", ("oci",))
    assert match(rules[:1], ACME) is None


def test_weaker_fallback_is_refused_with_both_names():
    with pytest.raises(InvalidConfiguration) as refused:
        check_rules((BackendRule(("local",)), BackendRule(("gvisor", "docker"))), strength)
    assert refused.value.message == (
        "policy.backends[1].use: backend docker isolates less than gvisor, so it must not replace "
        "it"
    )
    assert refused.value.details == {
        "setting": "policy.backends[1].use",
        "backend": "docker",
        "first": "gvisor",
    }


@pytest.mark.parametrize(
    ("use", "isolation", "minimum", "named"),
    [
        (("local",), None, "gvisor", "policy.isolation_minimum"),
        (("local",), "gvisor", None, "policy.isolation"),
        (("gvisor", "local"), "gvisor", "gvisor", "policy.isolation"),
        (("gvisor",), "strongest", None, "policy.isolation"),
    ],
)
def test_rule_below_the_demanded_isolation_is_refused(use, isolation, minimum, named):
    with pytest.raises(InvalidConfiguration, match=named):
        check_rules((BackendRule(use),), strength, isolation, minimum)


def test_stronger_or_equal_fallback_is_accepted():
    check_rules((BackendRule(("local", "docker", "gvisor")),), strength, "standard", "standard")
    check_rules((), strength, "strongest", "gvisor")


@given(USES, st.sampled_from((None, *MINIMA)), st.sampled_from((None, *MINIMA)))
def test_isolation_never_weakens(use, isolation, minimum):
    """Whatever an operator writes: what is accepted never weakens, and what is not accepted (a
    policy that another program built) is not used either.
    """
    rule = BackendRule(use)
    got = in_order(rule, strength, minimum)
    least = max(strength(use[0]), 0 if minimum is None else weakest_of(minimum))
    assert all(strength(one) >= least for one in got)
    try:
        check_rules((rule,), strength, isolation, minimum)
    except InvalidConfiguration:
        weak = [weakest_of(one) for one in (isolation, minimum) if one is not None]
        assert any(strength(one) < max([strength(use[0]), *weak]) for one in use)
    else:
        assert got == use
        assert all(strength(one) >= strength(use[0]) for one in use)
