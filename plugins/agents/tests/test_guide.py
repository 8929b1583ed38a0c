"""The guide to agent files: its example is valid, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandkasten_agents.definitions.prompt_file import AGENT_FIELDS, parse_agent
from sandkasten_agents.definitions.prompt_render import render
from sandkasten_agents.definitions.prompt_templates import HELPERS, ROLES
from sandkasten_agents.definitions.sandbox_field import LIMIT_FIELDS, NETWORK_FIELDS, SANDBOX_FIELDS

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "agents.md").read_text()


def rows(section: str) -> str:
    """Return the first cells of the tables of a section."""
    part = GUIDE.split(section, 1)[1].split("\n##", 1)[0]
    return "\n".join(line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `"))


def test_the_example_is_an_agent_without_warnings():
    [source] = re.findall(r"^```prompt\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    agent = parse_agent(source, "guide")
    assert agent.warnings == ()
    assert agent.sandbox is not None
    assert agent.sandbox.options.pip_packages == ("pandas",)
    system, user = render(agent, "What failed?", {"service": "api"})
    assert system["content"].startswith("You analyze the log of api, the last 7 days of it.")
    assert user == {"role": "user", "content": "What failed?"}


@pytest.mark.parametrize("name", AGENT_FIELDS)
def test_every_field_of_the_frontmatter_is_in_the_guide(name):
    told = rows("## An agent's file")
    if name in ("name", "description", "metadata", "input", "output"):
        assert f"{name}`" in GUIDE or f"`{name}." in told
    else:
        assert f"`{name}`" in told


@pytest.mark.parametrize("name", [*SANDBOX_FIELDS, *LIMIT_FIELDS])
def test_every_field_of_the_sandbox_is_in_the_guide(name):
    told = rows("### The sandbox")
    assert f"`{name}`" in told or f"`{name}." in told


@pytest.mark.parametrize("name", NETWORK_FIELDS)
def test_every_field_of_the_network_is_in_the_guide(name):
    assert f"`network.{name}`" in GUIDE


@pytest.mark.parametrize("name", sorted(HELPERS))
def test_every_helper_is_in_the_guide(name):
    assert re.search(rf"\{{\{{#?{name}\b", rows("### The template"))


def test_every_role_is_in_the_guide():
    assert all(f"`{name}`" in GUIDE for name in ROLES if name != "assistant")
