"""Models by provider: the key of OpenAI, Anthropic or Gemini is enough, Ollama needs none."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten.model.runs.run_values import AgentRunRequest
from sandkasten_agents.chat.model_settings import Models, ModelSettings
from tests.agents.agency import house
from tests.models.server import Answer, ScriptedModel

KEY = "sk-provider-secret"


def agent(model: str) -> str:
    return f"---\nmodel: {model}\n---\nYou are plain.\n"


@pytest.mark.promise("P66")
@pytest.mark.parametrize(
    ("model", "url", "key"),
    [
        ("openai/gpt-4o", "SANDKASTEN_MODELS_OPENAI_BASE_URL", "OPENAI_API_KEY"),
        ("anthropic/claude-x", "SANDKASTEN_MODELS_ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-x", "SANDKASTEN_MODELS_GEMINI_BASE_URL", "GEMINI_API_KEY"),
        ("ollama/qwen3:4b", "OLLAMA_HOST", None),
    ],
)
async def test_an_agent_reaches_the_provider_that_its_model_names(
    tmp_path, caplog, model, url, key
):
    caplog.set_level(logging.DEBUG)
    async with ScriptedModel([Answer("from the provider")]) as server:
        environ: dict[str, Any] = {url: server.base_url} | ({} if key is None else {key: KEY})
        async with house(
            tmp_path, backend="unisolated", SANDKASTEN_MODELS_BASE_URL="", **environ
        ) as home:
            row = await home.agent("a", "hello", source=agent(model))
            assert (row.status, row.output) == ("completed", "from the provider"), row.error
            told = str([one.data for one in await home.runs.events(row.id)])
    [asked] = server.requests
    assert asked.body["model"] == model.partition("/")[2]
    assert asked.headers.get("Authorization") == (None if key is None else f"Bearer {KEY}")
    assert KEY not in caplog.text + told


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-x", "GEMINI_API_KEY"),
    ],
)
async def test_without_the_key_of_a_provider_its_variable_is_named(tmp_path, model, variable):
    async with house(tmp_path, backend="unisolated", SANDKASTEN_MODELS_BASE_URL="") as home:
        with pytest.raises(InvalidConfiguration) as refused:
            await home.service.start_agent(AgentRunRequest("a", source=agent(model)))
    assert refused.value.hint.startswith(f"set {variable}, or ")


async def test_the_default_model_can_name_a_provider(tmp_path):
    async with (
        ScriptedModel([Answer("by default")]) as server,
        house(
            tmp_path,
            backend="unisolated",
            SANDKASTEN_MODELS_BASE_URL="",
            SANDKASTEN_MODELS_DEFAULT="openai/small",
            SANDKASTEN_MODELS_OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY=KEY,
        ) as home,
    ):
        row = await home.agent("a", "hello", source="You are plain.\n")
    assert (row.status, row.output) == ("completed", "by default"), row.error
    assert server.requests[0].body["model"] == "small"


async def test_a_rejected_key_names_the_variable_of_its_provider(tmp_path):
    refusal = Answer(status=401, raw=b'{"error": {"message": "bad key"}}')
    async with (
        ScriptedModel([refusal]) as server,
        house(
            tmp_path,
            backend="unisolated",
            SANDKASTEN_MODELS_BASE_URL="",
            SANDKASTEN_MODELS_OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY=KEY,
        ) as home,
    ):
        row = await home.agent("a", "hello", source=agent("openai/gpt-4o"))
    assert row.error is not None
    assert "OPENAI_API_KEY" in row.error["hint"]


def test_a_model_of_an_unknown_provider_goes_to_the_default_endpoint():
    models = Models(ModelSettings("http://localhost/v1"), {"openai": ModelSettings("http://o/v1")})
    assert models.for_name("mistral/small").base_url == "http://localhost/v1"
    assert models.for_name("openai/gpt-4o").base_url == "http://o/v1"
