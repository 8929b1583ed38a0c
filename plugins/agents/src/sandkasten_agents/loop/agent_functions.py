"""Functions that one agent can call: the tools of its sandbox, and other agents.

Everything about an agent that can be rejected is rejected here, before it starts: PolicyDenied,
InvalidAgent, AgentNotFound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import InvalidAgent
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import did_you_mean
from sandkasten_agents.chat.chat_wire import wire_config
from sandkasten_agents.loop.tool_messages import MOST_NAME, function_name
from sandkasten_tools.adapter_protocols import openai_functions
from sandkasten_tools.calls.tool_schemas import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten_agents.definitions.prompt_file import Agent
    from sandkasten_agents.loop.loop_limits import AgentLimits, LoopLimits
    from sandkasten_tools.calls.toolbox import Toolbox

PREFIX: Final = "agent_"
# Its value is always the task, whatever the input schema is.
_TASK: Final = "userInput"


@dataclass(frozen=True, slots=True)
class AgentFunctions:
    limits: AgentLimits
    functions: Sequence[Mapping[str, Any]]
    """In wire format."""
    tools: frozenset[str]
    """Tools of the sandbox, by name."""
    agents: Mapping[str, Agent]
    """Agents, by the name of the tool that calls them."""
    config: Mapping[str, Any]
    response_format: Mapping[str, Any] | None

    @property
    def names(self) -> list[str]:
        return [*sorted(self.tools), *self.agents]


def build_functions(
    agent: Agent,
    toolbox: Toolbox,
    lookup: Callable[[str], Agent],
    limits: LoopLimits,
    depth: int,
) -> AgentFunctions:
    specs = toolbox.specs(agent.sandbox)
    if agent.tools is not None:
        _known(agent, [spec.name for spec in specs])
        specs = [spec for spec in specs if spec.name in agent.tools]
    # At the maximum depth, the agents it could have called are not offered.
    below = _named(agent, lookup) if depth < limits.max_depth else {}
    return AgentFunctions(
        limits=limits.for_agent(agent),
        functions=[
            *openai_functions(specs),
            *(_function(name, callee) for name, callee in below.items()),
        ],
        tools=frozenset(spec.name for spec in specs),
        agents=below,
        config=wire_config(agent.config),
        response_format=_format(agent),
    )


def _known(agent: Agent, names: list[str]) -> None:
    for name in agent.tools or ():
        if name not in names:
            hint = did_you_mean(name, names)
            if not names:
                hint = "tools require a sandbox; add `sandbox:` to the agent's file"
            elif name in TOOLS and agent.sandbox and TOOLS[name].mode != agent.sandbox.mode:
                hint = f"{name} requires `sandbox: {{mode: {TOOLS[name].mode}}}`"
            raise InvalidAgent(
                f"the agent {agent.name!r} has no tool {name!r}", hint=hint, tool=name
            )


def _named(agent: Agent, lookup: Callable[[str], Agent]) -> dict[str, Agent]:
    agents: dict[str, Agent] = {}
    for name in agent.agents:
        short = PREFIX + function_name(name, MOST_NAME - len(PREFIX) - 4)
        unique, number = short, 1
        while unique in agents:
            number += 1
            unique = f"{short}_{number}"
        agents[unique] = lookup(name)
    return agents


def _function(name: str, agent: Agent) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "task": {
            "type": "string",
            "description": "The task, with all the information that the agent needs.",
        }
    }
    required = ["task"]
    if (variables := _variables(agent.input_schema)) is not None:
        properties["variables"] = variables
        if variables.get("required"):
            required.append("variables")
    description = agent.description or f"The agent {agent.name}."
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Hand a task to another agent and return its answer. {description}",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
        },
    }


def _variables(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the input schema without the task, which is a separate argument."""
    if not schema or not isinstance(schema.get("properties"), dict):
        return None
    variables = {name: value for name, value in schema["properties"].items() if name != _TASK}
    if not variables:
        return None
    needed = [name for name in schema.get("required", ()) if name != _TASK]
    rest = {name: value for name, value in schema.items() if name not in ("properties", "required")}
    return {**rest, "properties": variables, **({"required": needed} if needed else {})}


def _format(agent: Agent) -> dict[str, Any] | None:
    if agent.output_schema is None:
        return {"type": "json_object"} if agent.output_format == "json" else None
    schema = {"name": function_name(agent.name), "schema": dict(agent.output_schema)}
    # Not `strict`: few hand-written schemas qualify, and the arguments are validated anyway.
    return {"type": "json_schema", "json_schema": schema}
