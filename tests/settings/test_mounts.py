"""`policy.mounts` and `workspace.*` from a file or a variable, refused by name."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.sandbox.host_mounts import MountRule
from sandkasten.model.sandbox.limits import MIB
from sandkasten.model.sandbox.workspace import WorkspaceRules
from sandkasten_runtime.assembly.settings.resolver import load

FILE = """
data_dir: /srv/sandkasten
policy:
  mounts:
    models: {source: /data/models, target: /models, default: false}
    corpus:
      source: /data/corpus
      default: true
workspace:
  default_mb: 100
  max_mb: 2000
  max_count: 5
"""
RULES = (
    MountRule("models", "/data/models", "/models"),
    MountRule("corpus", "/data/corpus", "/mnt/corpus", default=True),
)
TEXTS = ["models=/data/models:/models", "corpus=/data/corpus:/mnt/corpus:default"]


@pytest.fixture
def file(tmp_path):
    def write(text: str):
        (tmp_path / "sandkasten.yaml").write_text(text)
        return tmp_path

    return write


def test_mounts_and_workspace_sizes_are_read_from_the_file(file):
    settings = load({}, {}, file(FILE))
    assert settings.policy.mounts == RULES
    assert settings.policy.workspaces == WorkspaceRules(100 * MIB, 2000 * MIB, 5)
    shown = {one.name: one.value for one in settings.origins()}
    assert shown["policy.mounts"] == TEXTS


def test_a_mount_variable_equals_the_list_in_the_file(file, tmp_path):
    settings = load({}, {"SANDKASTEN_POLICY_MOUNTS": ", ".join(TEXTS)}, tmp_path)
    assert settings.policy.mounts == RULES
    listed = "policy:\n  mounts:\n" + "".join(f"  - {text}\n" for text in TEXTS)
    assert load({}, {}, file(listed)).policy.mounts == RULES


def test_the_default_has_no_mounts_and_standard_workspace_sizes(tmp_path):
    plain = load({}, {}, tmp_path)
    assert plain.policy.mounts == ()
    assert plain.policy.workspaces == WorkspaceRules()
    other = load({}, {"SANDKASTEN_DEFAULTS_WORKSPACE_MB": "64"}, tmp_path)
    assert other.policy.workspaces.default_bytes == 64 * MIB
    values = {one.name: one.value for one in other.origins()}
    assert values["workspace.default_mb"] == 64


@pytest.mark.promise("P24")
@pytest.mark.parametrize(
    ("mounts", "complaint"),
    [
        ("{m: {source: /, target: /m}}", "would show"),
        ("{m: {source: /etc/shadow, target: /m}}", "would show /etc/shadow"),
        ("{m: {source: /var/run/docker.sock, target: /m}}", "would show /var/run"),
        ("{m: {source: /srv/sandkasten, target: /m}}", "would show /srv/sandkasten"),
        ("{m: {source: /srv, target: /m}}", "would show /srv/sandkasten"),
        ("{m: {source: /srv/sandkasten/cells, target: /m}}", "would show /srv/sandkasten"),
        ("{m: {source: data, target: /m}}", "source is not an absolute path"),
        ("{m: {source: /data, target: /workspace/x}}", "would cover /workspace"),
        ("{m: {source: /data, target: /run/sandkasten}}", "would cover /run"),
        ("{m: {source: /data, target: /m, readonly: false}}", "unknown key 'readonly'"),
        ("{m: /data}", "is not a mapping"),
        ("7", "must be a mapping or a list"),
        ("{../x: {source: /data}}", "is not a valid mount name"),
        ("{1: {source: /data}}", "is not a valid mount name"),
    ],
)
def test_a_forbidden_mount_prevents_the_start(file, mounts, complaint):
    with pytest.raises(InvalidConfiguration, match=complaint) as refused:
        load({}, {}, file(f"data_dir: /srv/sandkasten\npolicy:\n  mounts: {mounts}\n"))
    assert refused.value.message.startswith("policy.mounts: ")
    assert refused.value.hint
    assert refused.value.details == {"setting": "policy.mounts"}


def test_a_mount_nested_one_level_too_deep_is_refused(file):
    with pytest.raises(InvalidConfiguration, match="source is not an absolute path"):
        load({}, {}, file("policy: {mounts: {m: {source: {a: b}}}}\n"))
    with pytest.raises(InvalidConfiguration, match="nested too deep"):
        load({}, {}, file("policy: {mounts: {m: {source: {a: {b: {c: d}}}}}}\n"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("default_mb", "0"),
        ("default_mb", "2000"),
        ("max_mb", "-1"),
        ("max_mb", "much"),
        ("max_count", "0"),
        ("max_count", "nan"),
    ],
)
def test_a_number_out_of_range_prevents_the_start(file, name, value):
    with pytest.raises(InvalidConfiguration) as refused:
        load({}, {}, file(f"workspace:\n  max_mb: 1000\n  {name}: {value}\n" if name != "max_mb"
                          else f"workspace:\n  {name}: {value}\n"))  # fmt: skip
    assert refused.value.details == {"setting": f"workspace.{name}"}
