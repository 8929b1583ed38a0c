"""`policy.backends` from a file or a variable, refused by name."""

from __future__ import annotations

import json

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.backends.backend_rules import BackendRule
from sandkasten_runtime.assembly.settings.resolver import load

pytestmark = pytest.mark.promise("P118")

FILE = """
policy:
  backends:
    - {tenant: acme, use: gvisor, only: true}
    - image: [python, "registry.example/*"]
      label: {team: research}
      agent: reviewer
      use: [docker, oci, local]
"""
RULES = (
    BackendRule(("gvisor",), tenants=("acme",), only=True),
    BackendRule(
        ("docker", "oci", "local"),
        images=("python", "registry.example/*"),
        labels={"team": "research"},
        agents=("reviewer",),
    ),
)


def test_rules_are_read_from_the_file_and_shown(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(FILE)
    settings = load({}, {}, tmp_path)
    assert settings.policy.backends == RULES
    shown = {one.name: one.value for one in settings.origins()}
    assert shown["policy.backends"] == [
        "tenant acme: gvisor only",
        "image python, registry.example/* and label team=research and agent reviewer: "
        "docker, then oci, then local",
    ]


def test_variable_has_the_same_as_json(tmp_path):
    told = [
        {"tenant": "acme", "use": "gvisor", "only": True},
        {
            "image": ["python", "registry.example/*"],
            "label": {"team": "research"},
            "agent": "reviewer",
            "use": ["docker", "oci", "local"],
        },
    ]
    environ = {"SANDKASTEN_POLICY_BACKENDS": json.dumps(told)}
    assert load({}, environ, tmp_path).policy.backends == RULES
    assert load({}, {}, tmp_path).policy.backends == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("local", "must be a list or a mapping; a string must be valid JSON"),
        ("3", "must be a list"),
        ('["local"]', r"\[0\] must be a mapping"),
        ("[{}]", "must have a backend"),
        ('[{"use": []}]', r"\[0\].use must be a name or a list of names"),
        ('[{"use": "bubblewrap"}]', r"\[0\].use must be .*bubblewrap"),
        ('[{"use": ["local", "local"]}]', "must name each backend once"),
        ('[{"use": "local", "images": "x"}]', "has an unknown key 'images'"),
        ('[{"use": "local", "only": "yes"}]', "only must be true or false"),
        ('[{"use": "local", "label": "x"}]', "label must be a mapping"),
        ('[{"use": "local", "label": {"x": 3}}]', "must have strings"),
        ('[{"use": "local", "tenant": [3]}]', "must have printable names"),
        (
            '[{"use": "local"}, {"use": ["local", "docker/nowhere"]}]',
            r"\[1\].use is docker/nowhere, which backends.docker.engines does not",
        ),
        (
            '[{"use": "local"}, {"use": "docker/zone=mars"}]',
            r"\[1\].use: no Docker Engine has the label zone=mars",
        ),
        ('[{"use": "docker/zone="}]', "not a valid choice of Docker Engines"),
        ('[{"use": ["gvisor", "docker/zone=eu"]}]', "docker/zone=eu isolates less than gvisor"),
        ('[{"use": ["gvisor", "local"]}]', "local isolates less than gvisor"),
    ],
)
def test_invalid_rule_is_refused_with_its_place(tmp_path, value, message):
    with pytest.raises(InvalidConfiguration, match=message) as refused:
        load({}, {"SANDKASTEN_POLICY_BACKENDS": value}, tmp_path)
    assert refused.value.hint
    if "only" in value:
        assert "only: true" in refused.value.hint
    assert str(refused.value.details["setting"]).startswith(
        ("policy.backends", "SANDKASTEN_POLICY_BACKENDS")
    )


def test_rule_below_the_minimum_is_refused_at_the_start(tmp_path):
    environ = {
        "SANDKASTEN_POLICY_BACKENDS": '[{"use": "docker"}]',
        "SANDKASTEN_POLICY_ISOLATION_MINIMUM": "gvisor",
    }
    with pytest.raises(
        InvalidConfiguration, match="docker isolates less than policy.isolation_min"
    ):
        load({}, environ, tmp_path)
