"""Network rules as people write them, and the operator's limits on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkasten.errors import InvalidConfiguration, InvalidRequest, PolicyDenied
from sandkasten.model.sandbox import network_refusals
from sandkasten.model.sandbox.network_policy import (
    CLOSED,
    NetworkAttempt,
    NetworkCeiling,
    NetworkPolicy,
    default_network,
    network_for,
    parse_network,
    unreachable_rules,
)
from sandkasten.model.sandbox.network_refusals import (
    destination,
    no_network_hint,
    not_public,
    refusals,
    suggested,
)
from sandkasten.model.sandbox.network_rules import parse_rule
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_server.cli.commands.network import rule_lines
from sandkasten_server.cli.output import tell_network


@pytest.mark.parametrize("value", [None, "none", {}, {"allow": []}, False])
def test_nothing_is_open_by_default(value):
    assert parse_network(value) == CLOSED
    assert parse_network(value).public() == "none"


def test_full_and_rules_are_written_as_they_are_read():
    assert parse_network("full").public() == "full"
    rules = {"allow": ["a.example", "*.b.example:443"], "deny": ["x.b.example"], "dry_run": True}
    assert parse_network(rules).public() == rules
    assert parse_network(parse_network(rules).public()) == parse_network(rules)


def test_a_preset_stands_for_its_rules():
    allowed = parse_network({"allow": ["preset:pypi", "a.example"]}).allow
    assert len(allowed) == 3
    assert allowed[-1] == "a.example"


@pytest.mark.parametrize(
    ("text", "host", "network", "port"),
    [
        ("Example.COM", "example.com", None, None),
        ("*.example.com:8443", "*.example.com", None, 8443),
        ("192.0.2.7", None, "192.0.2.7/32", None),
        ("192.0.2.0/24", None, "192.0.2.0/24", None),
        ("[2001:db8::1]:443", None, "2001:db8::1/128", 443),
        ("2001:db8::/32", None, "2001:db8::/32", None),
        ("example.com.", "example.com", None, None),
    ],
)
def test_a_rule_names_a_host_or_a_network(text, host, network, port):
    rule = parse_rule(text)
    assert (rule.host, rule.network, rule.port) == (host, network, port)


@pytest.mark.parametrize(
    "text",
    [
        "0x7f.1", "2130706433", "127.1", "017700000001", "http://example.com", "exa mple.com",
        "example.com:0", "example.com:99999", "example.com:http", "*", "*example.com", "a..b",
        "-a.example", "", "ä.example", "a" * 400, "[::1", "1.2.3.4/33", "user@example.com",
        "fe80::1%eth0", 7,
    ],
)  # fmt: skip
def test_an_unusual_spelling_is_refused_and_not_guessed(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_network({"allow": ["a.test"], "deny": [text]})
    assert refused.value.hint


@pytest.mark.parametrize(
    "value", ["bridge", 7, ["a"], {"alow": []}, {"allow": "a"}, {"dry_run": 1}]
)
def test_an_invalid_network_is_refused(value):
    with pytest.raises(InvalidRequest):
        parse_network(value)


def test_without_a_setting_the_operator_may_ask_and_a_key_may_not():
    assert network_for("full", NetworkCeiling(), operator=True) == NetworkPolicy(full=True)
    with pytest.raises(PolicyDenied):
        network_for("full", NetworkCeiling(), operator=False)
    assert network_for(None, NetworkCeiling(), operator=False) == CLOSED


@pytest.mark.parametrize(
    ("allow", "operator", "network"),
    [
        (None, True, NetworkPolicy(full=True)),
        (None, False, CLOSED),
        (("*",), False, NetworkPolicy(full=True)),
        ((), True, CLOSED),
        (("preset:mine", "b.test"), False, NetworkPolicy(allow=("a.test:443", "b.test"))),
    ],
)
def test_the_default_network_is_all_that_a_request_may_have(allow, operator, network):
    ceiling = NetworkCeiling(allow=allow, presets={"mine": ("a.test:443",)})
    found = default_network(ceiling, operator=operator)
    assert found == network
    assert network_for(found.public(), ceiling, operator=operator) == found


@pytest.mark.parametrize(
    ("rule", "permitted"),
    [
        ("example.com", False), ("a.example.com", True), ("*.example.com", True),
        ("*.a.example.com", True), ("*.com", False), ("b.test:443", True), ("b.test", False),
        ("b.test:80", False), ("10.1.2.3", True), ("10.0.0.0/7", False), ("badexample.com", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("operator", [True, False])
def test_a_request_stays_within_the_setting(rule, permitted, operator):
    ceiling = NetworkCeiling(allow=("*.example.com", "b.test:443", "10.0.0.0/8"))
    if permitted:
        assert network_for({"allow": [rule]}, ceiling, operator=operator).allow == (rule,)
        return
    with pytest.raises(PolicyDenied) as refused:
        network_for({"allow": [rule]}, ceiling, operator=operator)
    assert refused.value.details["rule"] == "policy.network"


@pytest.mark.parametrize("value", ["full", {"allow": ["*"]}, {"dry_run": True}])
def test_full_and_a_dry_run_need_an_open_setting(value):
    with pytest.raises(PolicyDenied):
        network_for(value, NetworkCeiling(allow=("*.example.com",)), operator=True)
    assert network_for(value, NetworkCeiling(allow=("*",)), operator=False)


def test_settings_are_read_from_a_file_and_from_variables(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(
        "policy:\n  network: [preset:mine, b.test]\n"
        "network:\n  presets:\n    mine: [a.test:443]\n  hosts:\n    a.test: [192.0.2.1]\n"
    )
    found = load({}, {"SANDKASTEN_NETWORK_REACHABLE": "10.0.0.0/8"}, tmp_path).policy.network
    assert found.allow == ("preset:mine", "b.test")
    assert found.presets["mine"] == ("a.test:443",)
    assert (found.reachable, dict(found.hosts)) == (("10.0.0.0/8",), {"a.test": ("192.0.2.1",)})
    assert load({"policy.network": "none"}, {}, tmp_path).policy.network.allow == ()


@pytest.mark.parametrize(
    "flags",
    [
        {"policy.network": "preset:none-such"},
        {"policy.network": "0x7f.1"},
        {"network.reachable": "everything"},
        {"network.servers": "dns.example"},
        {"network.servers": "192.0.2.1:70000"},
        {"network.hosts": "a.test=there"},
        {"network.hosts": "a.test=10.0.0.0/8"},
        {"network.presets": "mine=a b"},
    ],
)
def test_wrong_settings_are_refused(flags, tmp_path):
    with pytest.raises(InvalidConfiguration):
        load(flags, {}, tmp_path)


def test_a_rule_is_suggested_for_each_host_and_port():
    tried = [
        NetworkAttempt(1, 0.0, "refused", 443, host="b.test"),
        NetworkAttempt(2, 0.0, "opened", 80, host="a.test"),
        NetworkAttempt(3, 0.0, "closed", 80, host="a.test"),
        NetworkAttempt(4, 0.0, "refused", 22, address="2606:4700::1111"),
    ]
    assert suggested(tried) == ("[2606:4700::1111]:22", "a.test:80", "b.test:443")
    assert not_public(tried) == ()


@pytest.mark.parametrize("event", ["refused", "would_refuse"])
def test_a_host_that_the_rules_allow_is_not_suggested(event):
    tried = [
        NetworkAttempt(1, 0.0, event, 80, "the client names another host", host="a.test"),
        NetworkAttempt(2, 0.0, event, 443, "TLS without a server name", host="b.test"),
    ]
    assert suggested(tried) == ()


def test_refused_secret_over_plain_http_is_explained():
    tried = [NetworkAttempt(1, 0.0, "refused", 80, "secret without TLS", host="a.test")]
    [refusal] = refusals(tried)
    assert refusal.hint == "use https: a secret is never sent over plain HTTP"


def test_what_no_rule_can_open_is_not_suggested():
    closed = "address that is not public"
    tried = [
        NetworkAttempt(1, 0.0, "refused", 80, "default", address="169.254.169.254"),
        NetworkAttempt(2, 0.0, "refused", 80, "default", address="::ffff:10.0.0.1"),
        NetworkAttempt(3, 0.0, "refused", 443, "default", address="1.1.1.1"),
        NetworkAttempt(4, 0.0, "refused", 80, "default", host="inner.test"),
        NetworkAttempt(5, 0.0, "refused", 80, closed, host="inner.test"),
        NetworkAttempt(6, 0.0, "refused", 80, "default", host="inner.test"),
        NetworkAttempt(7, 0.0, "refused", 80, closed, host="moved.test"),
        NetworkAttempt(8, 0.0, "opened", 80, "moved.test", host="moved.test", address="1.1.1.1"),
        # A public address of this machine.
        NetworkAttempt(9, 0.0, "refused", 22, closed, address="8.8.4.4"),
    ]
    assert suggested(tried) == ("1.1.1.1:443", "moved.test:80")
    assert not_public(tried) == (
        "169.254.169.254:80",
        "8.8.4.4:22",
        "[::ffff:10.0.0.1]:80",
        "inner.test:80",
    )
    assert not_public(tried, ["10.0.0.0/8", "8.8.4.4"]) == ("169.254.169.254:80", "inner.test:80")
    assert "[::ffff:10.0.0.1]:80" in suggested(tried, ["10.0.0.0/8"])


@pytest.mark.parametrize(
    ("allow", "reachable", "warned"),
    [
        (["10.0.0.1"], [], "10.0.0.1"),
        (["10.0.0.0/8", "example.com"], [], "10.0.0.0/8"),
        (["[fd00::1]:443"], [], "[fd00::1]:443"),
        (["10.0.0.1"], ["10.0.0.0/24"], ""),
        (["8.8.8.8", "0.0.0.0/0", "example.com", "preset:pypi"], [], ""),
    ],
)
def test_an_allowed_address_that_stays_closed_is_warned_about(allow, reachable, warned):
    found = unreachable_rules(
        parse_network({"allow": allow}), NetworkCeiling(reachable=tuple(reachable))
    )
    said = " and ".join(found)
    assert said.partition(" will not be reached: ")[0] == warned
    assert ("network.reachable" in said) is bool(warned)


@pytest.mark.parametrize(
    ("rule", "host", "address", "hint"),
    [
        ("default", "a.test", None, "network.allow"),
        ("default", None, "169.254.169.254", "network.reachable"),
        ("default", None, "1.1.1.1", "network.allow"),
        ("deny a.test", "a.test", None, "network.deny"),
        ("address that is not public", "a.test", "10.0.0.1", "network.reachable"),
    ],
)
def test_the_hint_of_a_refusal_names_what_can_open_it(rule, host, address, hint):
    one = NetworkAttempt(1, 0.0, "refused", 80, rule, host=host, address=address)
    assert hint in refusals([one])[0].hint


@pytest.mark.parametrize(
    ("rule", "host", "address", "reachable", "allow"),
    [
        ("default", "a.test", None, [], "a.test:80"),
        ("default", None, "1.1.1.1", [], "1.1.1.1:80"),
        ("default", None, "2606:4700::1111", [], "[2606:4700::1111]:80"),
        ("default", None, "10.0.0.1", [], None),
        ("default", None, "10.0.0.1", ["10.0.0.0/8"], "10.0.0.1:80"),
        ("default", None, "::ffff:10.0.0.1", [], None),
        ("address that is not public", "inner.test", "10.0.0.1", [], None),
        ("address that is not public", None, "10.0.0.1", [], None),
        ("deny a.test", "a.test", None, [], None),
        ("limit:connections", "a.test", None, [], None),
        ("secret without TLS", "a.test", None, [], None),
        ("bytes that are neither TLS nor HTTP", "a.test", None, [], None),
        ("the client names another host", "a.test", None, [], None),
        ("the client does not name its host clearly", "a.test", None, [], None),
        ("TLS without a server name", "a.test", None, [], None),
        ("a path that is not in its plain form", "a.test", None, [], None),
        ("a header that names another method, path or host", "a.test", None, [], None),
        ("another protocol to the host of a secret; a rule must name its port", "a.test", None, [],
         "a.test:80"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_rule_that_would_allow_it(rule, host, address, reachable, allow):
    one = NetworkAttempt(1, 0.0, "refused", 80, rule, host=host, address=address)
    assert refusals([one], reachable)[0].allow == allow


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("the client names another host", "connection of its own"),
        ("the client does not name its host clearly", "Host"),
        ("TLS without a server name", "SNI"),
        ("a path that is not in its plain form", "path"),
        ("a header that names another method, path or host", "without this header"),
    ],
)
def test_a_refusal_that_no_rule_opens_says_what_the_client_must_change(rule, hint):
    refused = refusals([NetworkAttempt(1, 0.0, "refused", 80, rule, host="a.test")])[0]
    assert hint in refused.hint
    assert "network.allow" not in refused.hint


def test_the_rules_of_refusals_are_those_of_the_egress_process():
    sources = (Path(__file__).parents[2] / "runner" / "src" / "egress").rglob("*.rs")
    text = "".join(path.read_text() for path in sources)
    rules = {*network_refusals._HINTS, *network_refusals._MISSING_RULE}
    assert {rule for rule in rules if f'"{rule}"' not in text} == set()


def test_no_rule_allows_a_name_that_does_not_exist():
    one = NetworkAttempt(1, 0.0, "failed", 53, host="no.test", reason="no such name")
    assert refusals([one])[0].allow is None


@pytest.mark.parametrize(
    "output",
    [
        b"curl: (6) Could not resolve host: example.com\n",
        b"urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>\n",
        b"npm error code EAI_AGAIN\n" + b"x" * 8000,
        b"dial tcp: lookup go.test: no such host\n",
    ],
)
def test_a_failure_without_a_network_has_the_hint_that_there_is_none(output):
    hint = no_network_hint("none", 1, output)
    assert hint.startswith("the sandbox was created without a network")
    # The innocent twins: it worked, it has a network, or the output says nothing of one.
    assert no_network_hint("none", 0, output) == ""
    assert no_network_hint("none", None, output) == ""
    assert no_network_hint({"allow": ["a.test"]}, 1, output) == ""
    assert no_network_hint("none", 1, b"1 test failed\n") == ""
    assert no_network_hint("none", 1, output + b"x" * 9000) == ""


def test_what_a_deny_rule_refuses_is_not_suggested():
    tried = [
        NetworkAttempt(1, 0.0, "opened", 443, "default", host="b.test"),
        NetworkAttempt(2, 0.0, "refused", 443, "deny a.test", host="a.test"),
        NetworkAttempt(3, 0.0, "would_refuse", 80, "deny c.test", host="c.test"),
    ]
    assert suggested(tried) == ("b.test:443",)


def test_all_rules_are_shown_one_per_line():
    value = {
        "allow": ["a.test"], "deny": ["b.test:80"], "limits": {"connections": 4}, "dry_run": True
    }  # fmt: skip
    assert rule_lines(parse_network(value).public()) == [
        "allow a.test",
        "deny b.test:80",
        "limit connections=4",
        "dry run",
    ]
    assert rule_lines("none") == ["none"]


def test_the_log_has_the_address_beside_the_name():
    assert destination("a.test", "192.0.2.7", 443) == "a.test:443 (192.0.2.7)"
    assert destination(None, "192.0.2.7", 443) == "192.0.2.7:443"
    assert destination("a.test", None, 443) == "a.test:443"


def test_a_refusal_has_the_address_beside_the_name(capsys):
    tried = [
        NetworkAttempt(1, 0.0, "refused", 443, "deny a.test", host="a.test", address="192.0.2.7"),
        NetworkAttempt(2, 0.0, "refused", 80, "default", host="b.test"),
        NetworkAttempt(3, 0.0, "refused", 80, "default", address="192.0.2.7"),
        NetworkAttempt(4, 0.0, "failed", 443, "lookup", host="c.test", reason="no such name"),
        NetworkAttempt(5, 0.0, "failed", 443, "allow d.test", host="d.test", reason="Timed out"),
    ]
    found = refusals(tried)
    assert [one.address for one in found] == ["192.0.2.7", None, None, None]
    tell_network(found, ())
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert told == [
        "warning: the network refused a.test:443 (192.0.2.7): deny a.test",
        "warning: the network refused b.test:80: no rule allows it",
        "warning: the network refused 192.0.2.7:80: no rule allows it",
        "warning: the network could not look up c.test (no such name)",
    ]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("https://API.example.com/v1", "a rule is a host, not a URL: write api.example.com:443"),
        ("http://u:p@a.test", "a rule is a host, not a URL: write a.test:80"),
        ("http://a.test:8080/x", "a rule is a host, not a URL: write a.test:8080"),
        ("postgres://db.test/x", "a rule is a host, not a URL: write db.test"),
        ("api.*.example.com", "* is only allowed as the first part, as in *.example.com"),
        ("*example.com:443", "* is only allowed as the first part, as in *.example.com"),
        ("a.test:80,443", "a port is one number; write one rule per port"),
        ("a.test:8000-9000", "a port is one number; write one rule per port"),
        ("a.test:*", "a port is one number; write one rule per port"),
        ("a.test:https", "a port is one number; write one rule per port"),
        ("a.test:70000", "use a port from 1 to 65535"),
        ("a.test,b.test", "repeat --allow"),
        ("a.test b.test", "repeat --allow"),
        ("bücher.example", "write the xn-- form of the name: xn--bcher-kva.example"),
        ("straße.example", "write the xn-- form of the name"),
        ("get a.test/x", "write GET api.example.com/repos/*"),
        ("a_..test", "write api.example.com, *.example.com"),
    ],
)
def test_the_hint_is_for_what_was_written(text, hint):
    with pytest.raises(InvalidRequest) as refused:
        parse_network({"allow": [text]})
    assert refused.value.message == f"{text!r} is not a valid rule"
    assert hint in refused.value.hint


def test_no_other_name_is_suggested_for_one_that_another_standard_spells():
    with pytest.raises(InvalidRequest) as refused:
        parse_network({"allow": ["straße.example"]})
    assert refused.value.hint == "write the xn-- form of the name"


def test_the_name_of_a_preset_is_not_taken_for_a_host():
    ceiling = NetworkCeiling(hosts={"npm": ("192.0.2.7",)})
    with pytest.raises(InvalidRequest) as refused:
        network_for({"allow": ["pypi"]}, ceiling, operator=True)
    assert refused.value.hint.startswith("did you mean preset:pypi?")
    for host in ("npm", "pypi.", "pypi:443", "preset:pypi"):
        assert network_for({"allow": [host]}, ceiling, operator=True).allow


@pytest.mark.parametrize("rule", ["localhost:8080", "127.0.0.1", "127.0.0.0/8", "[::1]:80"])
def test_a_rule_for_loopback_gives_a_warning_that_says_what_to_do(rule):
    opened = NetworkCeiling(reachable=("127.0.0.0/8", "::1/128"))
    (told,) = unreachable_rules(parse_network({"allow": [rule, "a.test"]}), opened)
    assert told.startswith(f"{rule} will not be reached: localhost and 127.0.0.1 in a sandbox are")
    assert "network.hosts" in told
    assert "network.reachable" in told


def test_rules_for_other_addresses_give_no_such_warning():
    open_now = NetworkCeiling(reachable=("10.0.0.0/8",))
    asked = parse_network({"allow": ["10.0.0.1", "0.0.0.0/0", "localhost.example.com"]})
    assert unreachable_rules(asked, open_now) == ()


def test_the_policy_takes_a_list_also_below_allow(tmp_path):
    def ceiling(written: str) -> NetworkCeiling:
        (tmp_path / "sandkasten.yaml").write_text(f"policy: {{network: {written}}}\n")
        return load({}, {}, tmp_path).policy.network

    assert ceiling("{allow: [a.test, 'preset:pypi']}").allow == ("a.test", "preset:pypi")
    assert ceiling("[a.test]").allow == ("a.test",)
    with pytest.raises(InvalidConfiguration) as refused:
        ceiling("{allow: [a.test], deny: [b.test]}")
    assert refused.value.message.startswith("policy.network must be none, full or a list of rules")
    with pytest.raises(InvalidConfiguration) as refused:
        ceiling("[pypi]")
    assert refused.value.hint.startswith("did you mean preset:pypi?")
