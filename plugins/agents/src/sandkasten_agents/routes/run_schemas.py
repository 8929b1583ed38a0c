"""Schemas of runs, agents, workflows and tools, and their responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sandkasten.model.json_codec import to_json
from sandkasten.model.runs.run_values import public_run
from sandkasten_server.api.request.field_schemas import (
    Duration,
    at_least_one,
    at_most_one,
    rules,
    schema,
)
from sandkasten_server.api.response.json_response import moments
from sandkasten_server.api.route import Answer, Body, Query

if TYPE_CHECKING:
    from sandkasten.model.runs.run_values import Definition, RunRow

Source = Annotated[str, Field(max_length=1 << 20)]
_Name = Annotated[str, schema(minLength=1)]
Seq = Annotated[int, Field(ge=0, le=1 << 62)]


class RunSession(Body):
    retain: Duration | None = Field(
        None,
        description="How long its sessions are kept after its end: seconds, or `30m`, `1h30m`, "
        "`7d`. They are reopened with their `session_key`. Default: as the file says.",
        examples=["1h"],
    )


class ExecuteBody(Body):
    model_config = ConfigDict(
        json_schema_extra=rules(
            at_least_one("agent_name", "agent_id", "source"), at_most_one("agent_name", "agent_id")
        )
    )

    agent_name: _Name | None = Field(None, description="Name of the agent; `agent_id` is the same.")
    agent_id: _Name | None = None
    task: str = Field("", description="The task.")
    variables: dict[str, Any] = Field(
        default_factory=dict,
        description="Values for its template. None of them can name a run or a sandbox.",
    )
    source: Source | None = Field(
        None, description="The text of a prompt file, in place of one of the daemon's."
    )
    session: RunSession | None = None


class WorkflowBody(Body):
    model_config = ConfigDict(json_schema_extra=at_least_one("workflow_id", "source"))

    workflow_id: _Name | None = Field(None, description="Which workflow.")
    input: Any = None
    source: Source | None = Field(
        None, description="The text of a workflow file, in place of one of the daemon's."
    )
    session: RunSession | None = None


class SourceBody(Body):
    source: Source
    name: str = ""


class RunsQuery(Query):
    status: Literal["running", "completed", "failed", "cancelled", "lost"] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    before: str | None = Field(None, description="`next` of the previous page.")


class AgentRunsQuery(RunsQuery):
    kind: Literal["agent", "workflow"] | None = None


class EventsQuery(Query):
    since_seq: Seq = Field(0, description="Only those after this one.")
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class RunUsageAnswer(Answer):
    steps: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Run(Answer):
    id: str
    run_id: str
    kind: Literal["agent", "workflow"]
    name: str
    status: Literal["running", "completed", "failed", "cancelled", "lost"]
    done: bool
    input: Any
    output: Any
    error: dict[str, Any] | None
    retained: dict[str, str] = Field(
        description="Sessions that were kept at its end: their ids by `session_key`."
    )
    parent_id: str | None = Field(description="The run that started this one.")
    workflow_run_id: str | None
    usage: RunUsageAnswer
    created_at: str
    created_at_unix: float
    started_at: str
    ended_at: str | None
    ended_at_unix: float | None
    completed_at: str | None


class RunDetail(Run):
    run: Run = Field(description="The same fields again.")


class Accepted(Run):
    message: str


class RunList(Answer):
    runs: list[Run]
    count: int
    next: str | None = Field(description="Pass it as `before` for the next page.")


class Event(Answer):
    seq: int
    at: str
    at_unix: float
    type: str
    data: dict[str, Any]


class EventList(Answer):
    events: list[Event]
    count: int
    next_seq: int
    status: str
    done: bool = Field(description="The run has ended, and these were its last events.")


class Described(Answer):
    kind: str
    id: str
    name: str
    description: str
    path: str
    warnings: list[str]
    error: dict[str, Any] | None
    fields: dict[str, Any]


class DescribedWhole(Described):
    source: str


class AgentList(Answer):
    agents: list[Described]
    count: int


class WorkflowList(Answer):
    workflows: list[Described]
    count: int


def run_fields(row: RunRow) -> dict[str, Any]:
    times = moments(created_at=row.created_at, ended_at=row.ended_at)
    return {
        **public_run(row),
        **times,
        "started_at": times["created_at"],
        "completed_at": times["ended_at"],
    }


def detail_fields(row: RunRow) -> dict[str, Any]:
    fields = run_fields(row)
    return {**fields, "run": fields}


def definition_fields(definition: Definition, *, whole: bool = False) -> dict[str, Any]:
    fields = {**definition.fields, **to_json(definition), "id": definition.name}
    if not whole:
        del fields["source"]
    return fields
