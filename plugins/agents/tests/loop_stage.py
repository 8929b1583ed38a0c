"""An agent loop on a scripted model and a real toolbox, with its recorded events."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sandkasten.errors import AgentNotFound
from sandkasten_agents.chat.model_settings import Models
from sandkasten_agents.definitions.prompt_file import parse_agent
from sandkasten_agents.loop.agent_loop import AgentLoop
from sandkasten_tools.calls.agent_sandbox import AgentSandbox
from tests.models.server import ScriptedModel, settings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.loop.agent_loop import AgentResult
    from tests.agents.desk import Desk
    from tests.models.server import Script


def agent(text: str = "", *, says: str = "You are a tester.", name: str = "tester") -> Agent:
    """Return an agent with these frontmatter lines and this template."""
    return parse_agent(f"---\nmodel: scripted\n{text}\n---\n{says}\n", name)


@dataclass
class Stage:
    loop: AgentLoop
    model: ScriptedModel
    desk: Desk
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def note(self, type: str, data: Mapping[str, Any]) -> None:
        self.notes.append((type, dict(data)))

    async def run(
        self,
        agent: Agent,
        task: str = "do it",
        variables: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> AgentResult:
        context = replace(
            self.desk.context, agent_name=agent.name, sandbox=agent.sandbox or AgentSandbox()
        )
        return await self.loop.run(agent, task, variables or {}, context, self.note, **others)

    def noted(self, type: str) -> list[dict[str, Any]]:
        return [data for one, data in self.notes if one == type]


@asynccontextmanager
async def staged(
    desk: Desk,
    script: Script,
    *agents: Agent,
    settings: Mapping[str, Any] | None = None,
    **others: Any,
) -> AsyncIterator[Stage]:
    known = {one.name: one for one in agents}

    def lookup(name: str) -> Agent:
        if name not in known:
            raise AgentNotFound(f"no agent {name}")
        return known[name]

    async with ScriptedModel(script) as model:
        models = Models(settings_of(model, **(settings or {})))
        async with AgentLoop(models, desk.toolbox, lookup, **others) as loop:
            yield Stage(loop, model, desk)
