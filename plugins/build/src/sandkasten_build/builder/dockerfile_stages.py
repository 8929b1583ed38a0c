"""Split a Dockerfile into stages, and find those that the last one needs. Pure.

`parse_dockerfile` returns the last stage and those that it needs, each after what it needs. An
image that only a `COPY --from` names is a stage without instructions. Raises InvalidRequest, which
names the line. Unknown instructions are refused, because the image would not be as intended.
"""

from __future__ import annotations

import re
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidImage, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_build.builder.build_plan import MAX_STEPS
from sandkasten_build.builder.dockerfile_lines import invalid, split_lines
from sandkasten_build.builder.dockerfile_words import WordError, expand, split_words
from sandkasten_runtime.images.image_config import machine_architecture
from sandkasten_runtime.images.image_names import checked_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten_build.builder.dockerfile_lines import Instruction

SCRATCH: Final = "scratch"
_KNOWN: Final = (
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "MAINTAINER", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
)  # fmt: skip
_OTHERS: Final = {"ONBUILD": "put the instruction into the Dockerfile that uses this image"}
_MAX_FLAGS: Final = 16
_ARG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_STAGE: Final = re.compile(r"[a-z][a-z0-9._-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """One stage."""

    base: str
    """The name of an image, or `scratch`."""
    instructions: tuple[Instruction, ...]
    """Those after FROM."""
    escape: str = "\\"
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Values given by the caller, and those of ARG before FROM."""
    line: int = 1
    parent: int | None = None
    """The stage that it begins with, instead of `base`."""
    copies: Mapping[int, int] = field(default_factory=dict)
    """The stage that the COPY of a line takes its files from."""


@dataclass(slots=True)
class _Stages:
    found: list[Dockerfile] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    """Also the numbers of stages, and images that are copied from."""

    def end(self, name: str | None, stage: Dockerfile, number: int) -> None:
        self.found.append(stage)
        self.names[str(number)] = len(self.found) - 1
        if name is not None:
            self.names[name] = len(self.found) - 1

    def source(self, instruction: Instruction, name: str) -> int:
        """Return the stage or image that a COPY takes its files from."""
        at = self.names.get(name.lower())
        if at is not None:
            return at
        if name.isdecimal():
            raise invalid(
                instruction.line,
                f"the file has no stage {name} before this line",
                "stages count from 0",
            )
        self.found.append(Dockerfile(_image(instruction, name), (), line=instruction.line))
        self.names[name.lower()] = len(self.found) - 1
        return len(self.found) - 1


def parse_dockerfile(data: bytes, build_args: Mapping[str, str]) -> tuple[Dockerfile, ...]:
    lines = split_lines(data)
    if len(lines.instructions) > MAX_STEPS:
        raise InvalidRequest(
            f"the Dockerfile has more than {MAX_STEPS} instructions", hint="join some of them"
        )
    early: dict[str, str] = _platform()
    declared: set[str] = set(early)
    stages = _Stages()
    # The indexes of the FROM instructions.
    begins = [n for n, instruction in enumerate(lines.instructions) if instruction.name == "FROM"]
    for number, instruction in enumerate(lines.instructions):
        _check_known(instruction)
        if instruction.name == "ARG":
            for name, default in arguments_of(instruction, lines.escape, early):
                declared.add(name)
                value = build_args.get(name, default)
                if value is not None and number < min(begins, default=number + 1):
                    early[name] = value
        elif instruction.name != "FROM" and number < min(begins, default=number + 1):
            raise invalid(
                instruction.line, f"{instruction.name} before FROM", "begin with FROM IMAGE"
            )
    if not begins:
        raise InvalidRequest("the Dockerfile has no FROM", hint="begin with FROM IMAGE")
    for name in build_args:
        if name not in declared:
            raise InvalidRequest(
                f"the Dockerfile has no ARG {shown(name)}", hint=did_you_mean(name, declared)
            )
    for count, (start, end) in enumerate(zip(begins, [*begins[1:], None], strict=True)):
        _stage(stages, count, lines.instructions[start:end], lines.escape, early, build_args)
    return _needed(stages.found)


def _stage(
    stages: _Stages,
    number: int,
    instructions: tuple[Instruction, ...],
    escape: str,
    early: Mapping[str, str],
    build_args: Mapping[str, str],
) -> None:
    begin, *rest = instructions
    base, name = _base(begin, early, escape)
    parent = stages.names.get(base.lower()) if not base.isdecimal() else None
    if parent is None and base != SCRATCH:
        base = _image(begin, base)
    copies: dict[int, int] = {}
    for instruction in rest:
        wanted = (
            flags_of(instruction)[0].get("from") if instruction.name in ("COPY", "ADD") else None
        )
        if wanted:
            copies[instruction.line] = stages.source(instruction, wanted)
    arguments = {**early, **build_args}
    stage = Dockerfile(base, tuple(rest), escape, arguments, begin.line, parent, copies)
    stages.end(name, stage, number)


def _needed(stages: list[Dockerfile]) -> tuple[Dockerfile, ...]:
    """Return the last stage and all that it needs, with new indexes."""
    wanted = {len(stages) - 1}
    for at in range(len(stages) - 1, -1, -1):
        if at in wanted:
            wanted.update(stages[at].copies.values())
            wanted.update(() if (parent := stages[at].parent) is None else (parent,))
    indexes = {at: index for index, at in enumerate(sorted(wanted))}
    return tuple(
        replace(
            stages[at],
            parent=None if (parent := stages[at].parent) is None else indexes[parent],
            copies={line: indexes[stage] for line, stage in stages[at].copies.items()},
        )
        for at in sorted(wanted)
    )


def _check_known(instruction: Instruction) -> None:
    if instruction.name in _OTHERS:
        raise invalid(
            instruction.line, f"{instruction.name} is not supported", _OTHERS[instruction.name]
        )
    if instruction.name not in _KNOWN:
        hint = did_you_mean(instruction.name, _KNOWN)
        raise invalid(instruction.line, f"{shown(instruction.name)} is not an instruction", hint)


def _base(
    instruction: Instruction, values: Mapping[str, str], escape: str
) -> tuple[str, str | None]:
    """Return the image or stage that a FROM names, and the name of its own stage."""
    flags, rest = flags_of(instruction)
    for flag in flags:
        hint = "pull the image for that platform first (sandkasten image pull --platform)"
        raise invalid(instruction.line, f"FROM --{flag} is not supported", hint)
    words = [expanded(instruction, word, values, escape) for word in split_words(rest, escape)]
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise invalid(
            instruction.line, "FROM must name one image", "write FROM IMAGE, or FROM IMAGE AS NAME"
        )
    name = words[2].lower() if len(words) == 3 else None
    if name is not None and not _STAGE.match(name):
        raise invalid(
            instruction.line,
            f"{shown(words[2])} is not the name of a stage",
            "write FROM a AS build",
        )
    return words[0], name


def _image(instruction: Instruction, name: str) -> str:
    try:
        return checked_name(name)
    except InvalidImage as exc:
        raise invalid(instruction.line, exc.message, exc.hint) from exc


def arguments_of(
    instruction: Instruction, escape: str, values: Mapping[str, str]
) -> list[tuple[str, str | None]]:
    """Return the names that an ARG declares, each with its default."""
    words = split_words(instruction.rest, escape)
    if not words:
        raise invalid(
            instruction.line, "ARG declares nothing", "write ARG NAME or ARG NAME=default"
        )
    declared: list[tuple[str, str | None]] = []
    variables = dict(values)
    for word in words:
        name, equals, default = word.partition("=")
        if not _ARG.match(name):
            raise invalid(
                instruction.line, f"{shown(name)} is not a name", "write ARG NAME=default"
            )
        value = expanded(instruction, default, variables, escape) if equals else None
        if value is not None:
            variables[name] = value
        declared.append((name, value))
    return declared


def expanded(instruction: Instruction, text: str, values: Mapping[str, str], escape: str) -> str:
    try:
        return expand(text, values, escape)
    except WordError as exc:
        raise invalid(
            instruction.line, str(exc), "check the quotes and the variables of this line"
        ) from exc


def flags_of(instruction: Instruction) -> tuple[dict[str, str], str]:
    """Return the `--name=value` words at the beginning, and the rest."""
    flags, rest = {}, instruction.rest
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, _, value = word.removeprefix("--").partition("=")
        flags[name] = value
        rest = rest.lstrip()
        if len(flags) > _MAX_FLAGS:
            raise invalid(
                instruction.line, f"{instruction.name} has too many flags", "write each flag once"
            )
    return flags, rest


def _platform() -> dict[str, str]:
    """Return the arguments that exist without being given."""
    machine = machine_architecture()
    values = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine, "VARIANT": ""}
    return {
        f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in values.items()
    }
