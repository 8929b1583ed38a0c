"""The snippets of the deployment guides are valid and set existing settings."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandkasten_docker.docker_options import DOCKER_MODES, WORKSPACE_MODES
from sandkasten_runtime.assembly.settings.resolver import documented

pytestmark = pytest.mark.promise("P41")

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "docs" / "guides" / name for name in ("docker.md", "platforms.md")]
SHOWN = [*GUIDES, ROOT / "deploy" / "Dockerfile"]
SHOWN += sorted((ROOT / "deploy" / "compose").glob("*.yaml"))
FENCE = re.compile(r"^```(json|yaml|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(kind, text, id=f"{path.name}-{number}")
    for path in GUIDES
    for number, (kind, text) in enumerate(FENCE.findall(path.read_text()), 1)
    # The others are files of settings.
    if "SANDKASTEN_" in text
]
KNOWN = {variable for one in documented() for variable in one.variables}
# Read by Compose, and handed on by it under another name.
_OF_COMPOSE = (
    "IMAGE", "PORT", "ALLOWED_HOSTS", "SHARED_VOLUME", "AGENTS", "WORKFLOWS", "CPUS", "MEMORY",
)  # fmt: skip
OF_COMPOSE = {f"SANDKASTEN_{name}" for name in _OF_COMPOSE}


def read(kind: str, text: str) -> list[Any]:
    if kind == "json":
        return [json.loads(text)]
    return [tomllib.loads(text)] if kind == "toml" else list(yaml.safe_load_all(text))


def settings_in(value: Any) -> dict[str, str]:
    """Return our variables and their values, in the syntax of any platform."""
    found: dict[str, str] = {}
    if isinstance(value, dict):
        name = value.get("name")
        if isinstance(name, str) and name.startswith("SANDKASTEN_"):
            found[name] = str(value.get("value", ""))
        for key, one in value.items():
            if key.startswith("SANDKASTEN_"):
                found[key] = str(one)
            found |= settings_in(one)
    elif isinstance(value, list):
        for one in value:
            found |= settings_in(one)
    return found


@pytest.mark.parametrize(("kind", "text"), SNIPPETS)
def test_a_snippet_is_valid_and_gives_the_daemon_an_engine_and_a_key(kind: str, text: str) -> None:
    settings = settings_in(read(kind, text))
    assert settings.keys() <= KNOWN
    mode = settings["SANDKASTEN_DOCKER_ENGINE_MODE"]
    assert mode in DOCKER_MODES
    assert settings.get("SANDKASTEN_DOCKER_WORKSPACE_MODE", "auto") in WORKSPACE_MODES
    assert ("SANDKASTEN_DOCKER_HOST" in settings) == (mode != "docker_socket")
    secured = {name for name in settings if "CERT" in name or "TLS" in name}
    assert bool(secured) == (mode == "remote")
    # As a secret of the app there, which the file does not hold.
    assert "SANDKASTEN_API_KEY" in settings or kind == "toml"


def test_there_is_a_snippet_for_every_platform_of_the_matrix() -> None:
    assert len(SNIPPETS) == 5
    matrix = (ROOT / "docs" / "guides" / "platforms.md").read_text()
    for platform in ("ECS on EC2", "ECS on Fargate", "GKE", "Cloud Run", "Fly.io"):
        assert f"\n## {platform}\n" in matrix
        assert f"\n| {platform}" in matrix
    assert "\n| Docker Compose |" in matrix


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_every_variable_in_the_guides_is_a_setting(path: Path) -> None:
    named = set(re.findall(r"\bSANDKASTEN_[A-Z_]+\b", path.read_text()))
    assert named - KNOWN - OF_COMPOSE == set()


def test_the_check_detects_an_unknown_variable() -> None:
    assert {"SANDKASTEN_DOCKER_ENGINE"} - KNOWN - OF_COMPOSE
