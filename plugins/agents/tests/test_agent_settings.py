"""Settings of agents and models."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_agents.agent_settings import AgentSettings
from sandkasten_agents.provider_settings import ProviderSettings
from sandkasten_runtime.assembly.settings.resolver import load


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
    ).of(AgentSettings)
    assert found.agent_dirs == (Path("prompts"), Path("more"))
    assert found.workflow_dirs == (Path("flows"),)
    assert (found.base_url, found.api_key, found.model) == (
        "http://127.0.0.1:11434/v1",
        "k",
        "small",
    )
    assert (found.max_steps, found.model_timeout_s, found.retention_s) == (7, 90.0, 7200.0)


def test_a_setting_is_found_by_its_name_for_a_part_that_must_not_know_its_section(tmp_path):
    found = settings(tmp_path, "models:\n  base_url: http://127.0.0.1:1/v1\n  api_key: k\n")
    assert found.named("models.base_url") == "http://127.0.0.1:1/v1"
    assert found.named("models.api_key") == "k"
    assert found.named("models.default") is None
    assert found.named("models.nothing") is None


def test_the_key_of_the_models_may_be_in_a_file_of_its_own(tmp_path):
    file = tmp_path / "models.key"
    file.write_text("k-in-a-file\n")
    file.chmod(0o600)
    named = {"SANDKASTEN_MODELS_API_KEY_FILE": str(file)}
    assert settings(tmp_path, **named).of(AgentSettings).api_key == "k-in-a-file"
    assert (
        settings(tmp_path, **named, SANDKASTEN_MODELS_API_KEY="k").of(AgentSettings).api_key == "k"
    )
    file.chmod(0o644)
    with pytest.raises(InvalidConfiguration) as refused:
        settings(tmp_path, **named)
    assert refused.value.details["setting"] == "models.api_key_file"
    assert refused.value.hint == f"chmod 600 {file}"


def test_the_default_has_directories_and_no_models(tmp_path):
    found = settings(tmp_path).of(AgentSettings)
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


@pytest.mark.parametrize(
    ("variable", "provider", "url"),
    [
        ("OPENAI_API_KEY", "openai", "https://api.openai.com/v1"),
        ("ANTHROPIC_API_KEY", "anthropic", "https://api.anthropic.com/v1"),
        (
            "GEMINI_API_KEY",
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
    ],
)
def test_the_key_of_a_provider_alone_gives_its_endpoint(tmp_path, variable, provider, url):
    found = settings(tmp_path, **{variable: "sk-very-secret"})
    endpoints = {
        one.name: (one.base_url, one.api_key) for one in found.of(ProviderSettings).endpoints
    }
    assert endpoints == {
        provider: (url, "sk-very-secret"),
        # Has no key, so it needs no setting.
        "ollama": ("http://127.0.0.1:11434/v1", None),
    }
    shown = {one.name: (one.value, one.origin) for one in found.origins()}
    assert shown[f"models.{provider}.api_key"] == ("(set)", f"env {variable}")
    assert "very-secret" not in repr(found)
    assert "very-secret" not in repr(found.of(ProviderSettings).endpoints)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:9999", "http://127.0.0.1:9999/v1"),
        ("box", "http://box:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        (":7000", "http://127.0.0.1:7000/v1"),
        ("https://box.example", "https://box.example/v1"),
        ("http://box:80/ollama/", "http://box:80/ollama/v1"),
        ("http://box/v1", "http://box/v1"),
        ("[::1]:5", "http://[::1]:5/v1"),
    ],
)
def test_the_host_of_ollama_is_read_as_ollama_reads_it(tmp_path, host, url):
    [ollama] = settings(tmp_path, OLLAMA_HOST=host).of(ProviderSettings).endpoints
    assert (ollama.name, ollama.base_url) == ("ollama", url)


def test_the_operators_own_endpoint_wins_over_variables_of_other_programs(tmp_path):
    others = {
        "OPENAI_API_KEY": "a",
        "OPENAI_BASE_URL": "http://127.0.0.1:2/v1",
        "OLLAMA_HOST": "127.0.0.1:3",
    }
    mine = {"SANDKASTEN_MODELS_BASE_URL": "http://127.0.0.1:1/v1"}
    assert settings(tmp_path, **others, **mine).of(ProviderSettings).endpoints == ()
    own = {"SANDKASTEN_MODELS_OPENAI_BASE_URL": "http://h/v1"}
    for found in (
        settings(tmp_path, **others, **mine, **own),
        settings(
            tmp_path, "models: {openai: {base_url: 'http://h/v1'}}", OPENAI_API_KEY="a", **mine
        ),
    ):
        assert [
            (one.name, one.base_url, one.api_key) for one in found.of(ProviderSettings).endpoints
        ] == [("openai", "http://h/v1", "a")]


def test_a_base_url_of_anthropic_without_a_path_gets_its_version(tmp_path):
    found = (
        settings(tmp_path, ANTHROPIC_API_KEY="a", ANTHROPIC_BASE_URL="https://proxy.example")
        .of(ProviderSettings)
        .endpoints
    )
    assert found[0].base_url == "https://proxy.example/v1"
