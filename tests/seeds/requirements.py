"""The requirements of the source documents, their state and their tests; see requirements.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tests.seeds.documents import HERE, documents, exists, is_long

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = HERE / "requirements.yaml"
STATES = {
    "works": "It works as written.",
    "partly": "The reason says what is missing.",
    "replaced": "The reason says what does it instead.",
    "missing": "It is not built.",
}


@dataclass(frozen=True, slots=True)
class Requirement:
    document: str
    section: str
    text: str
    state: str
    reason: str
    tests: tuple[str, ...]
    """Each as `tests/directory/test_file.py::test_function`."""


def read(text: str) -> list[Requirement]:
    """Return the requirements in the order of the file."""
    found: dict[str, Any] = yaml.safe_load(text)
    return [
        Requirement(
            document=document,
            section=part["section"],
            text=one["text"],
            state=one["state"],
            reason=one.get("reason", ""),
            tests=tuple(one.get("tests", ())),
        )
        for document, parts in found.items()
        for part in parts
        for one in part["requirements"]
    ]


def problems(requirements: Iterable[Requirement]) -> list[str]:
    """Return what is wrong with the requirements; empty if each has what its state needs."""
    complaints = []
    seen = set()
    for one in requirements:
        place = f"{one.document}, {one.section}, {one.text}"
        if place in seen:
            complaints.append(f"{place}: it is there twice")
        seen.add(place)
        if one.state not in STATES:
            complaints.append(f"{place}: {one.state!r} is not a state")
        if one.state != "works" and not one.reason:
            complaints.append(f"{place}: {one.state} requires a reason")
        if one.state == "missing" and one.tests:
            complaints.append(f"{place}: it is missing and has a test")
        if one.state != "missing" and not one.tests:
            complaints.append(f"{place}: {one.state} requires a test")
        complaints += [
            f"{place}: test {test} does not exist" for test in one.tests if not _is_test(test)
        ]
        if one.state == "works" and not _in_every_run(one):
            complaints.append(f"{place}: `make test` shows nothing of it, only `make test-long`")
    return complaints


def _is_test(test: str) -> bool:
    return "::test_" in test and exists(test)


def _in_every_run(one: Requirement) -> bool:
    existing = [test for test in one.tests if _is_test(test)]
    return not existing or any(not is_long(test) for test in existing)


def tables(requirements: list[Requirement]) -> str:
    """Return the generated part of docs/reference/seeds.md."""
    titles = {one.id: one.title for one in documents()}
    lines = ["| state | meaning |", "|---|---|"]
    lines += [f"| {state} | {meaning} |" for state, meaning in STATES.items()]
    lines += ["", f"| document | requirements | {' | '.join(STATES)} |"]
    lines.append("|---" * (2 + len(STATES)) + "|")
    for id, title in titles.items():
        lines.append(_count(title, [one for one in requirements if one.document == id]))
    lines.append(_count("all", requirements))
    for id, title in titles.items():
        lines += ["", f"## {title}", "", "| section | requirement | state | tests |"]
        lines.append("|---|---|---|---|")
        section = ""
        for one in requirements:
            if one.document == id:
                lines.append(_row(one, show_section=one.section != section))
                section = one.section
    return "\n".join([*lines, ""])


def _count(title: str, requirements: list[Requirement]) -> str:
    states = [one.state for one in requirements]
    counts = " | ".join(str(states.count(state)) for state in STATES)
    return f"| {title} | {len(states)} | {counts} |"


def _row(one: Requirement, *, show_section: bool) -> str:
    state = f"{one.state}: {one.reason}" if one.reason else one.state
    tests = "<br>".join(f"`{test}`" for test in one.tests)
    return f"| {one.section if show_section else ''} | {one.text} | {state} | {tests} |"
