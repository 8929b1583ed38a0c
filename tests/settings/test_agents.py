"""Settings of agents and models."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkasten.daemon.settings.resolver import load
from sandkasten.errors import InvalidConfiguration


def settings(tmp_path, text="", **environ):
    (tmp_path / "sandkasten.yaml").write_text(text)
    return load({}, {"HOME": str(tmp_path), **environ}, tmp_path)


def test_agents_and_models_are_read_from_file_and_environment(tmp_path):
    found = settings(
        tmp_path,
        "agents:\n  dirs: [prompts, more]\n  max_steps: 7\n"
        "models:\n  base_url: http://127.0.0.1:11434/v1/\n  default: small\n"
        "retention:\n  runs_seconds: 2h\n",
        SANDKASTEN_MODELS_API_KEY="k",
        SANDKASTEN_WORKFLOWS_DIRS="flows",
        SANDKASTEN_MODELS_TIMEOUT_SECONDS="90s",
    ).agents
    assert found.agent_dirs == (Path("prompts"), Path("more"))
    assert found.workflow_dirs == (Path("flows"),)
    assert (found.base_url, found.api_key, found.model) == (
        "http://127.0.0.1:11434/v1",
        "k",
        "small",
    )
    assert (found.max_steps, found.model_timeout_s, found.retention_s) == (7, 90.0, 7200.0)


def test_the_default_has_directories_and_no_models(tmp_path):
    found = settings(tmp_path).agents
    assert (found.agent_dirs, found.workflow_dirs) == ((Path("agents"),), (Path("workflows"),))
    assert (found.base_url, found.api_key, found.model) == (None, None, None)


def test_the_key_of_the_models_is_never_shown(tmp_path):
    found = settings(tmp_path, SANDKASTEN_MODELS_API_KEY="sk-very-secret")
    shown = {one.name: one.value for one in found.origins()}
    assert shown["models.api_key"] == "(set)"
    assert "very-secret" not in repr(found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SANDKASTEN_MODELS_BASE_URL", "ftp://x"),
        ("SANDKASTEN_MODELS_BASE_URL", "http://me:pw@host/v1"),
        ("SANDKASTEN_MODELS_BASE_URL", "http://host/v1?key=secret"),
        ("SANDKASTEN_MODELS_BASE_URL", "ftp://me:pw@host/v1"),
        ("SANDKASTEN_MODELS_BASE_URL", "http://me:pw@host:0/v1"),
        ("SANDKASTEN_MODELS_BASE_URL", "http://me:pw@host:x/v1"),
        ("SANDKASTEN_MODELS_BASE_URL", "http://me:pw@host/v1 "),
        ("SANDKASTEN_MODELS_BASE_URL", "http://me:pw@host/" + "v" * 5000),
        ("SANDKASTEN_MODELS_BASE_URL", "http://host:99999999/v1"),
        ("SANDKASTEN_MODELS_API_KEY", "two words"),
        ("SANDKASTEN_AGENTS_MAX_STEPS", "0"),
        ("SANDKASTEN_AGENTS_MAX_DEPTH", "many"),
        ("SANDKASTEN_RETENTION_RUNS_SECONDS", "soon"),
    ],
)
def test_an_invalid_agents_setting_is_refused_without_repeating_secrets(tmp_path, name, said):
    with pytest.raises(InvalidConfiguration) as refused:
        settings(tmp_path, **{name: said})
    assert "secret" not in str(refused.value)
    assert ":pw@" not in str(refused.value)
    assert "two words" not in str(refused.value)
