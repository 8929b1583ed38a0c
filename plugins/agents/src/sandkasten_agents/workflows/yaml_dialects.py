"""Parser of both YAML dialects of workflows into one plan.

In `steps`, a step continues with the one below it unless it names another. In `states`, a state
ends the run unless it names the next one. Both accept the same fields in every spelling. Issues are
collected, never raised.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.durations import seconds
from sandkasten_agents.workflows.issues import SpellingHint
from sandkasten_agents.workflows.step_retries import MOST_ATTEMPTS, Retry
from sandkasten_agents.workflows.workflow_fields import WorkflowFields, kind
from sandkasten_agents.workflows.workflow_plan import Body, Branch, Choice, Step, Workflow

if TYPE_CHECKING:
    from sandkasten_agents.workflows.issues import IssueCollector
    from sandkasten_agents.workflows.workflow_plan import Dialect, Join, StepType

MOST_STEPS: Final = 500
MOST_DEPTH: Final = 8
MOST_BRANCHES: Final = 32
MOST_CHOICES: Final = 100
MOST_CONCURRENCY: Final = 32
MOST_STEP_S: Final = 24 * 3600.0
MOST_WORKFLOW_S: Final = 7 * 24 * 3600.0

_TYPES: Final[dict[str, StepType]] = {
    "agent": "agent",
    "switch": "switch",
    "parallel": "parallel",
    "foreach": "foreach",
    "while": "while",
    "try": "try",
    "transform": "transform",
    "inject": "set",
    "set": "set",
    "context": "set",
    "sleep": "sleep",
    "delay": "sleep",
    "timer": "sleep",
    "end": "end",
}
# Step types of other engines that are not supported, and what to write instead.
_ELSEWHERE: Final = {
    "operation": "write type: agent, with the agent's name in `agent`",
    "action": "write type: agent, with the agent's name in `agent`",
    "function": "write type: agent, with the agent's name in `agent`",
    "human_approval": "a run cannot wait for a person; end it, and start another",
    "cron": "start the workflow from a scheduler on your machine",
    "schedule": "start the workflow from a scheduler on your machine",
}
_LOOP: Final[dict[str, tuple[str, ...]]] = {"body": ("iterator", "body", "do")}
_BODIES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "foreach": _LOOP,
    "while": _LOOP,
    "try": {"body": ("try", "body"), "catch": ("catch",), "lastly": ("finally",)},
}
_BACKOFFS: Final = {"exponential": True, "constant": False, "fixed": False}


def read(raw: Any, findings: IssueCollector) -> Workflow | None:
    """Return the workflow; None when nothing is left to validate."""
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        findings.error("NOT_A_WORKFLOW", "", f"a workflow must be a mapping, got {kind(raw)}")
        return None
    fields = WorkflowFields(raw, "", findings)
    id = fields.text("id") or ""
    if not id:
        findings.error("MISSING_WORKFLOW_ID", "id", "the workflow has no id", "add `id: my-flow`")
    if fields.has("steps") and fields.has("states"):
        findings.error("BAD_FIELD", "states", "a workflow must have `steps` or `states`, not both")
    dialect: Dialect = "states" if fields.has("states") and not fields.has("steps") else "steps"
    body = _Reader(dialect, findings).body(fields, depth=0)
    workflow = Workflow(
        id=id,
        body=body,
        name=fields.text("name") or id,
        description=fields.text("description") or "",
        version=fields.text("version") or "",
        dialect=dialect,
        input_schema=fields.mapping("inputSchema", "input_schema") or {},
        output_schema=fields.mapping("outputSchema", "output_schema") or {},
        output=fields.value("output"),
        timeout_s=fields.duration_s("timeout", "timeout_seconds", most_s=MOST_WORKFLOW_S),
        retain_s=_retention(fields, findings),
    )
    fields.value("metadata", "labels", "tags")
    fields.report_unknown()
    return workflow


def _retention(fields: WorkflowFields, findings: IssueCollector) -> float:
    session = WorkflowFields(fields.mapping("session") or {}, "session", findings)
    retain_s = session.duration_s("retain", most_s=MOST_WORKFLOW_S)
    session.report_unknown()
    return retain_s or 0.0


@dataclass(slots=True)
class _Reader:
    dialect: Dialect
    findings: IssueCollector
    count: int = 0
    ids: dict[str, str] = field(default_factory=dict)

    def body(self, fields: WorkflowFields, depth: int) -> Body:
        """Return the body of a mapping with `steps` or `states`, and optionally `start`."""
        listed = fields.list("steps", "states")
        start = fields.text("start")
        where = fields.at("steps" if self.dialect == "steps" else "states", "steps", "states")
        if not listed:
            self.findings.error("MISSING_STATES", where, "there are no steps", "add at least one")
            return Body("", ())
        # An inner list may use the other dialect; its own keyword decides.
        outer, self.dialect = self.dialect, "steps" if fields.has("steps") else "states"
        steps = self._steps(listed, where, depth)
        self.dialect = outer
        ids = [step.id for step in steps]
        if start is not None and start not in ids:
            message = f'the start step "{start[:60]}" is not one of its steps'
            self.findings.error(
                "INVALID_START", fields.at("start"), message, SpellingHint(start, ids)
            )
        return Body(start or (ids[0] if ids else ""), tuple(steps))

    def inner(self, raw: Any, path: str, depth: int) -> Body:
        """Return the body of such a mapping, or of a bare list."""
        if isinstance(raw, list):
            raw = {self.dialect: raw}
            fields = WorkflowFields(raw, path.rpartition(".")[0], self.findings)
            listed_at = path
        else:
            if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
                self.findings.error("BAD_FIELD", path, "must be a list of steps")
                return Body("", ())
            fields, listed_at = WorkflowFields(raw, path, self.findings), ""
        if depth > MOST_DEPTH:
            message = f"steps are nested more than {MOST_DEPTH} levels deep"
            self.findings.error("TOO_DEEP", path, message)
            return Body("", ())
        if listed_at:
            steps = self._steps(raw[self.dialect], listed_at, depth)
            if not steps:
                self.findings.error("MISSING_STATES", path, "there are no steps")
            return Body(steps[0].id if steps else "", tuple(steps))
        body = self.body(fields, depth)
        fields.value("name", "id")
        fields.report_unknown()
        return body

    def _steps(self, listed: list[Any], path: str, depth: int) -> list[Step]:
        self.count += len(listed)
        if self.count > MOST_STEPS:
            self.findings.error("TOO_MANY_STEPS", path, f"there are more than {MOST_STEPS} steps")
            return []
        ids = [_id_of(raw) for raw in listed]
        return [
            step
            for index, raw in enumerate(listed)
            if (step := self._step(raw, f"{path}[{index}]", (*ids[index + 1 :], None)[0], depth))
        ]

    def _step(self, raw: Any, path: str, below: str | None, depth: int) -> Step | None:
        if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
            self.findings.error("BAD_FIELD", path, f"a step must be a mapping, got {kind(raw)}")
            return None
        fields = WorkflowFields(raw, path, self.findings)
        id = self._id(fields)
        type = self._type(fields)
        if type is None:  # Reported once; the steps after it must still be reachable.
            return Step(id, "set", path, self._next(fields, "set", below))
        step = Step(
            id=id,
            type=type,
            path=path,
            next=self._next(fields, type, below),
            retry=self._retry(fields),
            timeout_s=fields.duration_s("timeout", "timeout_seconds", most_s=MOST_STEP_S),
            output=self._output(fields),
            result_path=_dotted(fields.text("resultPath", "result_path")),
            agent=fields.text("agent") or "",
            task=fields.text("task"),
            input=self._input(fields),
            expression=self._expression(fields, type),
            choices=self._choices(fields) if type == "switch" else (),
            data=fields.value("data"),
            branches=self._branches(fields, depth) if type == "parallel" else (),
            join=self._join(fields),
            item_name=fields.text("itemName", "item_name") or "item",
            max_concurrency=fields.whole(
                "maxConcurrency", "max_concurrency", least=1, most=MOST_CONCURRENCY
            )
            or 1,
            duration_s=fields.duration_s("duration", "seconds", most_s=MOST_STEP_S) or 0.0,
            **self._bodies(fields, type, depth),
        )
        self._complete(step, fields)
        fields.value("name", "description", "metadata")
        fields.report_unknown()
        return step

    def _id(self, fields: WorkflowFields) -> str:
        id = fields.text("id", "name") or ""
        if not id:
            self.findings.error("MISSING_STEP_ID", fields.path, "the step has no id")
        elif id in self.ids:
            message = f'"{id[:60]}" is already the id of {self.ids[id]}'
            self.findings.error("DUPLICATE_STEP_ID", fields.at("id", "name"), message)
        else:
            self.ids[id] = fields.path
        return id

    def _type(self, fields: WorkflowFields) -> StepType | None:
        type_name = fields.text("type")
        if type_name is None:
            near = difflib.get_close_matches("type", [str(key)[:64] for key in fields.raw], n=1)
            hint = f'write "type" for "{near[0]}"' if near else "add `type: agent`"
            self.findings.error("MISSING_TYPE", fields.path, "the step has no type", hint)
            return None
        if type_name not in _TYPES:
            instead: str | SpellingHint = _ELSEWHERE.get(type_name) or SpellingHint(
                type_name, _TYPES
            )
            message = f'unknown type "{type_name[:60]}"'
            self.findings.error("UNKNOWN_STEP_TYPE", fields.at("type"), message, instead)
            return None
        return _TYPES[type_name]

    def _next(self, fields: WorkflowFields, type: StepType, below: str | None) -> str | None:
        ends = fields.truth("end")
        after = fields.value("transition", "next")
        default = fields.text("defaultNext", "default_next", "default")
        if isinstance(after, dict):  # Written as `transition: {next: x}`.
            after = WorkflowFields(after, fields.at("transition"), self.findings).text(
                "next", "nextState"
            )
        if after is not None and not isinstance(after, str):
            fields.bad("must be the id of a step", "transition", "next")
            after = None
        if type == "switch":
            return default or after
        if type == "end" or ends:
            if after is not None:
                fields.bad("a step that ends the run cannot have a next step", "transition", "next")
            return None
        if after is None and self.dialect == "states":
            self.findings.warning(
                "MISSING_TRANSITION",
                fields.path,
                "the step has no next step, so the run ends here",
                "add `end: true`, or `next`",
            )
            return None
        return after if after is not None else below

    def _retry(self, fields: WorkflowFields) -> Retry:
        raw = fields.mapping("retry")
        if raw is None:
            return Retry()
        inner = WorkflowFields(raw, fields.at("retry"), self.findings)
        attempts = inner.whole(
            "max_attempts", "maxAttempts", "attempts", least=1, most=MOST_ATTEMPTS
        )
        backoff = inner.value("backoff", "backoff_seconds", "delay")
        grows = _BACKOFFS.get(backoff, True) if isinstance(backoff, str) else True
        waited = 1.0 if isinstance(backoff, str) and backoff in _BACKOFFS else seconds(backoff)
        if backoff is not None and waited is None:
            inner.bad('must be a duration, "exponential" or "constant"', "backoff", "delay")
        codes = inner.texts("retry_on", "retryOn")
        inner.report_unknown()
        return Retry(attempts or 1, waited or 0.0, grows, codes)

    def _output(self, fields: WorkflowFields) -> Any:
        chosen = fields.text("outputPath", "output_path")
        if fields.has("output"):
            return fields.value("output")
        return f"${{{'.'.join(('result', *_dotted(chosen)))}}}" if chosen else None

    def _input(self, fields: WorkflowFields) -> Any:
        chosen = fields.text("inputPath", "input_path")
        if fields.has("input"):
            return fields.value("input")
        return f"${{{as_expression(chosen)}}}" if chosen else None

    def _expression(self, fields: WorkflowFields, type: StepType) -> str | None:
        """Return the expression of a step: value of a switch, list or condition of a loop,
        transformation.
        """
        spellings = {
            "switch": ("expression", "dataPath", "data_path"),
            "foreach": ("itemsPath", "items_path", "items", "expression"),
            "while": ("condition", "expression"),
        }.get(type, ("expression",))
        value = fields.value(*spellings)
        if type == "foreach" and isinstance(value, list):
            return _literal(value)
        text = fields.text(*spellings)
        path = not fields.has("expression", "condition", "items")
        return as_expression(text) if text is not None and path else text

    def _choices(self, fields: WorkflowFields) -> tuple[Choice, ...]:
        choices = []
        listed = fields.list("transitions", "conditions") or []
        if len(listed) > MOST_CHOICES:
            fields.bad(f"has more than {MOST_CHOICES} conditions", "transitions", "conditions")
        for index, raw in enumerate(listed[:MOST_CHOICES]):
            path = f"{fields.at('transitions', 'conditions')}[{index}]"
            if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
                self.findings.error("BAD_FIELD", path, "must be a mapping with `next`")
                continue
            choice = WorkflowFields(raw, path, self.findings)
            next, when, test = (
                choice.text("next", "transition"),
                choice.text("condition"),
                choice.text("if"),
            )
            if next is None:
                self.findings.error("MISSING_NEXT", path, "has no next step", "add `next`")
            elif (when is None) == (test is None):
                hint = "with an expression of the switch, `condition` is compared with its value"
                self.findings.error("MISSING_CONDITION", path, "requires `condition` or `if`", hint)
            else:
                compared = test is None and fields.has("expression")
                choices.append(Choice(next, cast("str", test or when), compared, path))
            choice.report_unknown()
        if not choices:
            self.findings.error("MISSING_CONDITIONS", fields.path, "the switch has no transitions")
        return tuple(choices)

    def _branches(self, fields: WorkflowFields, depth: int) -> tuple[Branch, ...]:
        raw = fields.value("branches")
        path = fields.at("branches")
        if isinstance(raw, dict):
            named = [(str(name), body, f"{path}.{name}") for name, body in raw.items()]
        elif isinstance(raw, list):
            named = [
                (_id_of(body) or f"branch{index}", body, f"{path}[{index}]")
                for index, body in enumerate(raw)
            ]
        else:
            self.findings.error("MISSING_BRANCHES", path, "there are no branches")
            return ()
        if not 1 <= len(named) <= MOST_BRANCHES:
            message = f"must have 1 to {MOST_BRANCHES} branches"
            self.findings.error("MISSING_BRANCHES", path, message)
            return ()
        if len({name for name, _, _ in named}) < len(named):
            self.findings.error("DUPLICATE_STEP_ID", path, "branch names must be unique")
        branches = []
        for name, body, where in named:
            if isinstance(body, dict) and "type" in body:  # The branch is a single step.
                body = [body]
            branches.append(Branch(name, self.inner(body, where, depth + 1)))
        return tuple(branches)

    def _join(self, fields: WorkflowFields) -> Join:
        raw = fields.value("join")
        if isinstance(raw, dict):
            raw = WorkflowFields(raw, fields.at("join"), self.findings).text(
                "mode", "type", "strategy"
            )
        if raw not in (None, "all", "any"):
            fields.bad('must be "all" or "any"', "join")
        return "any" if raw == "any" else "all"

    def _bodies(self, fields: WorkflowFields, type: StepType, depth: int) -> dict[str, Body | None]:
        bodies: dict[str, Body | None] = {}
        for name, spelled in _BODIES.get(type, {}).items():
            if fields.has(*spelled):
                raw, where = fields.value(*spelled), fields.at(*spelled)
                bodies[name] = self.inner(raw, where, depth + 1)
            elif name == "body":
                self.findings.error("MISSING_STATES", fields.path, f"needs `{spelled[0]}`")
        return bodies

    def _complete(self, step: Step, fields: WorkflowFields) -> None:
        """Report required fields that are missing."""
        needs = {
            "agent": (bool(step.agent), "MISSING_AGENT", "does not name an `agent`"),
            "foreach": (step.expression is not None, "MISSING_ITEMS", "has no `itemsPath`"),
            "while": (step.expression is not None, "MISSING_CONDITION", "has no `condition`"),
            "set": (fields.has("data"), "MISSING_DATA", "has no `data`"),
            "sleep": (fields.has("duration", "seconds"), "MISSING_DURATION", "has no `duration`"),
            "transform": (
                step.expression is not None or fields.has("data"),
                "MISSING_EXPRESSION",
                "has neither `expression` nor `data`",
            ),
        }
        there, code, message = needs.get(step.type, (True, "", ""))
        if not there:
            self.findings.error(code, step.path, f"the {step.type} step {message}")
        if step.type == "set" and not step.result_path and not isinstance(step.data, dict | None):
            fields.bad("must be a mapping, or requires a `resultPath`", "data")
        if any(choice.compared for choice in step.choices) and step.expression is None:
            fields.bad("is required for the comparison", "expression")


def _id_of(raw: Any) -> str | None:
    raw_id = (raw.get("id") or raw.get("name")) if isinstance(raw, dict) else None
    return str(raw_id) if raw_id is not None else None


def _dotted(path: str | None) -> tuple[str, ...]:
    """Return the parts of a path: `$.a.b`, `vars.a.b` and `a.b` are the same."""
    bare = (path or "").removeprefix("$").removeprefix(".").removeprefix("vars.")
    return tuple(bare.split(".")) if bare else ()


def as_expression(path: str) -> str:
    """Return `$.a.b` as `a.b`: a path without its prefix is an expression."""
    return path.strip().removeprefix("$.")


def _literal(value: Any) -> str:
    """Return a list of the file as an expression.

    CEL understands JSON escapes except surrogate pairs, which JSON uses beyond U+FFFF.
    """
    return json.dumps(value, ensure_ascii=False)
