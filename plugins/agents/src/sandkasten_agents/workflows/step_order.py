"""Which agent steps of a workflow may run before which others, or at the same time. Pure.

An answer may be yes for an order that no input leads to: conditions are not evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten_agents.workflows.workflow_plan import every_step

if TYPE_CHECKING:
    from collections.abc import Collection

    from sandkasten_agents.workflows.workflow_plan import Body, Step, Workflow

    Node = tuple[str, str]
    Place = tuple[str, str]


class StepOrder:
    def __init__(self, workflow: Workflow) -> None:
        self._edges: dict[Node, set[Node]] = {}
        self._places: dict[str, frozenset[Place]] = {}
        self._start: Node = (workflow.body.start, "in")
        self._add(workflow.body, ("", "out"), frozenset())

    def may_precede(self, first: Collection[str], later: Collection[str]) -> bool:
        """Return whether one of the steps `first` can run before all of `later`, and one of
        `later` can still run then.
        """
        barred = {(id, "in") for id in later}
        for id in first:
            if id in later or any(self._may_overlap(id, other) for other in later):
                return True
        reached = self._reached(self._start, barred)
        return any(
            (id, "in") in reached and not barred.isdisjoint(self._reached((id, "in"), ()))
            for id in first
        )

    def _may_overlap(self, first: str, second: str) -> bool:
        """Return whether two steps are in different branches of one block, or in one block whose
        items run at the same time.
        """
        places, others = dict(self._places.get(first, ())), dict(self._places.get(second, ()))
        both = places.keys() & others.keys()
        return any(places[block] == "" or places[block] != others[block] for block in both)

    def _reached(self, start: Node, barred: Collection[Node]) -> set[Node]:
        if start in barred:
            return set()
        reached, waiting = {start}, [start]
        while waiting:
            for node in self._edges.get(waiting.pop(), ()):
                if node not in reached and node not in barred:
                    reached.add(node)
                    waiting.append(node)
        return reached

    def _edge(self, source: Node, target: Node) -> None:
        self._edges.setdefault(source, set()).add(target)

    def _add(self, body: Body, leaves: Node, places: frozenset[Place]) -> None:
        ids = {step.id for step in body.steps}
        for step in body.steps:
            self._places[step.id] = places
            for target in (*(choice.next for choice in step.choices), step.next):
                if target in ids:
                    self._edge((step.id, "out"), (str(target), "in"))
            if step.next is None:
                self._edge((step.id, "out"), leaves)
            self._add_inner(step, places)

    def _add_inner(self, step: Step, places: frozenset[Place]) -> None:
        enters, leaves = (step.id, "in"), (step.id, "out")
        if step.type == "try":
            self._add_try(step, places)
            return
        if step.type != "parallel":
            # A loop may have no round.
            self._edge(enters, leaves)
        for branch in step.branches:
            self._edge(enters, (branch.body.start, "in"))
            self._add(branch.body, leaves, places | {(step.id, branch.name or "branch")})
        if step.body is not None:
            self._edge(enters, (step.body.start, "in"))
            again = (step.id, "again")
            self._edge(again, (step.body.start, "in"))
            self._edge(again, leaves)
            at_once = step.type == "foreach" and step.max_concurrency > 1
            self._add(step.body, again, places | {(step.id, "")} if at_once else places)

    def _add_try(self, step: Step, places: frozenset[Place]) -> None:
        end: Node = (step.id, "out")
        if step.lastly is not None:
            self._add(step.lastly, end, places)
            end = (step.lastly.start, "in")
        fails = end
        if step.catch is not None:
            self._add(step.catch, end, places)
            fails = (step.catch.start, "in")
            self._add_failures(step.catch, end)
        if step.body is not None:
            self._edge((step.id, "in"), (step.body.start, "in"))
            self._add(step.body, end, places)
            self._add_failures(step.body, fails)

    def _add_failures(self, body: Body, handler: Node) -> None:
        for step in every_step(body):
            self._edge((step.id, "in"), handler)
