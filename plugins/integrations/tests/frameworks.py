"""The frameworks that have an adapter: extra, module, library and guide of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Framework:
    extra: str
    """Also the name of its requirements and of its environment."""
    module: str
    library: str
    """What the adapter imports first."""
    guide: str

    @property
    def page(self) -> Path:
        return ROOT / "docs" / "guides" / self.guide


FRAMEWORKS: Final[tuple[Framework, ...]] = (
    Framework("inspect", "inspect_ai_environment", "inspect_ai", "inspect-ai.md"),
    Framework("smolagents", "smolagents_executor", "smolagents", "smolagents.md"),
    Framework("autogen", "autogen_executor", "autogen_core", "autogen.md"),
    Framework("agent-framework", "agent_framework_shell", "agent_framework", "agent-framework.md"),
    Framework("openai-agents", "openai_agents_client", "agents", "openai-agents.md"),
    Framework("langchain", "langchain_backend", "deepagents", "langchain.md"),
    Framework("swe-rex", "swe_rex_deployment", "swerex", "swe-rex.md"),
    Framework("claude-agent", "claude_agent_tools", "claude_agent_sdk", "claude-agent.md"),
    Framework("pydantic-ai", "pydantic_ai_workspace", "pydantic_ai", "pydantic-ai.md"),
)
