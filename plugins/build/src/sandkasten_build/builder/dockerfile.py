"""Compile a stage of a Dockerfile to steps. Pure.

Instructions that have no effect in a sandbox (EXPOSE, VOLUME, …) are ignored with a warning. Other
unsupported instructions are InvalidRequest with their line. `steps_of` needs the configuration of
the stage's base, because variables may refer to it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import ChainMap
from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PayloadTooLarge
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import checked_environment
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH, WORKSPACE
from sandkasten.model.spelling import shown
from sandkasten_build.builder.build_plan import (
    USER,
    Copy,
    Run,
    SetCommand,
    SetEnv,
    SetLabels,
    SetUser,
    SetWorkdir,
    is_hidden,
)
from sandkasten_build.builder.dockerfile_lines import invalid
from sandkasten_build.builder.dockerfile_stages import arguments_of, expanded, flags_of
from sandkasten_build.builder.dockerfile_words import split_words
from sandkasten_build.builder.dockerignore import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten_build.builder.build_plan import Step
    from sandkasten_build.builder.dockerfile_lines import Instruction
    from sandkasten_build.builder.dockerfile_stages import Dockerfile
    from sandkasten_build.builder.dockerignore import DockerIgnore
    from sandkasten_runtime.images.image_config import ImageConfig

_IGNORED: Final = {
    "EXPOSE": "every port of a sandbox can be used",
    "HEALTHCHECK": "a sandbox runs no health checks",
    "MAINTAINER": "use LABEL maintainer=NAME",
    "STOPSIGNAL": "a sandbox always ends all its processes",
    "VOLUME": "its files stay in the image",
}
_SHELLS: Final = ("sh", "bash", "ash", "dash", "zsh")
_MAX_LABELS: Final = 64 * 1024
_SHELL: Final = ("/bin/sh", "-c")
_OWNER: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}(?::[A-Za-z0-9_][\w.-]{0,63})?\Z")
_MODE: Final = re.compile(r"0?[0-7]{3}\Z")
_ADDRESS: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)


def steps_of(
    file: Dockerfile, config: ImageConfig, network: NetworkPolicy, ignore: DockerIgnore
) -> Compiled:
    """Return the steps of the instructions, for a base with this configuration."""
    state = _State(
        file,
        {"PATH": DEFAULT_PATH, **config.env},
        posixpath.normpath("/" + (config.workdir or "/").lstrip("/")),
        network,
        ignore,
    )
    lines: list[int] = []
    for instruction in file.instructions:
        _COMPILE[instruction.name](state, instruction)
        lines += [instruction.line] * (len(state.steps) - len(lines))
    return Compiled(tuple(state.steps), tuple(lines), tuple(state.warnings))


@dataclass(frozen=True, slots=True)
class Compiled:
    steps: tuple[Step, ...]
    lines: tuple[int, ...]
    """The line of each step."""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _State:
    file: Dockerfile
    env: dict[str, str]
    workdir: str
    network: NetworkPolicy
    ignore: DockerIgnore
    args: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    shell: tuple[str, ...] = _SHELL
    has_cmd: bool = False

    def expand(self, instruction: Instruction, text: str) -> str:
        return expanded(instruction, text, ChainMap(self.env, self.args), self.file.escape)

    def words(self, instruction: Instruction, text: str) -> list[str]:
        return split_words(text, self.file.escape)


def _env(state: _State, instruction: Instruction) -> None:
    words = state.words(instruction, instruction.rest)
    if not words:
        raise invalid(instruction.line, "ENV sets nothing", "write ENV NAME=value")
    if "=" not in words[0]:
        # The old form: one name, and all the rest is its value.
        value = instruction.rest.removeprefix(words[0]).strip()
        if not value:
            raise invalid(
                instruction.line, f"ENV {shown(words[0])} has no value", "write ENV NAME=value"
            )
        variables = {words[0]: state.expand(instruction, value)}
    else:
        # Every value is read before any of them is set.
        variables = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise invalid(
                    instruction.line, f"{shown(word)} is not NAME=value", "use quotes for spaces"
                )
            variables[state.expand(instruction, name)] = state.expand(instruction, value)
    try:
        checked = checked_environment(variables)
    except (InvalidRequest, PayloadTooLarge) as exc:
        raise invalid(instruction.line, exc.message, exc.hint) from exc
    state.env.update(checked)
    state.steps.append(SetEnv(checked))


def _declare(state: _State, instruction: Instruction) -> None:
    for name, default in arguments_of(instruction, state.file.escape, {**state.args, **state.env}):
        value = state.file.arguments.get(name, default)
        if value is not None:
            state.args[name] = value


def _workdir(state: _State, instruction: Instruction) -> None:
    path = state.expand(instruction, instruction.rest)
    if not path or not path.isprintable() or len(path) > 4096:
        raise invalid(instruction.line, "WORKDIR requires a directory", "write WORKDIR /path")
    state.workdir = posixpath.normpath(posixpath.join(state.workdir, path))
    # Every sandbox has this directory, so nothing is lost.
    if state.workdir != WORKSPACE:
        _refuse_hidden(instruction, state.workdir)
    state.steps.append(SetWorkdir(state.workdir))


def _user(state: _State, instruction: Instruction) -> None:
    name = state.expand(instruction, instruction.rest)
    if not USER.match(name):
        raise invalid(
            instruction.line, f"{shown(name)} is not a valid user", "write a name or a number"
        )
    state.steps.append(SetUser(name))


def _run(state: _State, instruction: Instruction) -> None:
    flags, rest = flags_of(instruction)
    for flag in flags:
        hint = (
            "remove it, and use image build --allow HOST"
            if flag == "network"
            else "remove it, and copy what the command needs"
        )
        raise invalid(instruction.line, f"RUN --{flag} is not supported", hint)
    if instruction.heredocs:
        command = _script(instruction, rest)
        argv: tuple[str, ...] = (*state.shell, command)
    else:
        argv = _command(state, rest)
        command = rest
    if not rest or not argv:
        raise invalid(instruction.line, "RUN requires a command", "write RUN COMMAND")
    # Docker passes arguments to commands as variables, and those of ENV win.
    args = {name: value for name, value in state.args.items() if name not in state.env}
    state.steps.append(Run(command, state.network, argv, args))


def _script(instruction: Instruction, rest: str) -> str:
    """Return the script for the shell: a command with its here-documents, or only one of these."""
    if len(instruction.heredocs) == 1 and re.fullmatch(r"<<-?['\"]?[\w.]+['\"]?", rest):
        (script,) = instruction.heredocs
        if script.content.startswith("#!"):
            hint = "name the program: RUN python3 <<EOF"
            raise invalid(instruction.line, "a here-document with #! is not supported", hint)
        return script.content
    return rest + "\n" + "".join(heredoc.text for heredoc in instruction.heredocs)


def _copy(state: _State, instruction: Instruction) -> None:
    flags, rest = flags_of(instruction)
    for flag in flags:
        if flag not in ("chown", "chmod", "from") or (flag == "from" and instruction.name == "ADD"):
            raise invalid(
                instruction.line, f"{instruction.name} --{flag} is not supported", "remove it"
            )
    if instruction.heredocs:
        hint = "write the file into the directory of the build, or use RUN cat > FILE <<EOF"
        raise invalid(
            instruction.line, f"{instruction.name} of a here-document is not supported", hint
        )
    words = _list(rest)
    if words is None:
        words = state.words(instruction, rest)
    words = [state.expand(instruction, word) for word in words]
    if len(words) < 2:
        raise invalid(
            instruction.line,
            f"{instruction.name} requires a source and a target",
            "write SOURCE /TARGET",
        )
    *sources, to = words
    target = posixpath.normpath(posixpath.join(state.workdir, to or "."))
    # `//` is a different path in POSIX, and the root here.
    target = "/" + target.lstrip("/")
    if (to.endswith(("/", "/.")) or to in (".", "")) and target != "/":
        target += "/"
    if len(sources) > 1 and not target.endswith("/"):
        raise invalid(
            instruction.line,
            f"several sources require a directory, got {shown(to)}",
            "end it with /",
        )
    if not target.isprintable() or len(target) > 4096:
        raise invalid(instruction.line, f"{shown(to)} is not a valid path", "write /TARGET")
    _refuse_hidden(instruction, target)
    stage = state.file.copies.get(instruction.line)
    state.steps.append(
        Copy(
            tuple(_source(instruction, source) for source in sources),
            target,
            _mode(state, instruction, flags.get("chmod")),
            _owner(state, instruction, flags.get("chown")),
            patterns=True,
            archives=instruction.name != "ADD",
            ignore=state.ignore if stage is None else NOTHING,
            stage=stage,
        )
    )


def _source(instruction: Instruction, source: str) -> str:
    if _ADDRESS.match(source):
        hint = "download it in a RUN, with image build --allow HOST"
        raise invalid(instruction.line, f"{instruction.name} of a URL is not supported", hint)
    if not source or "\0" in source or len(source) > 4096:
        raise invalid(
            instruction.line, f"{instruction.name} has an invalid source", "write SOURCE /TARGET"
        )
    # A path of the build's directory may begin with a slash.
    clean = posixpath.normpath(source.lstrip("/") or ".")
    if clean.split("/")[0] == "..":
        hint = "only files below the directory of the build can be copied"
        raise invalid(instruction.line, f"{shown(source)} is outside the build's directory", hint)
    return clean


def _mode(state: _State, instruction: Instruction, flag: str | None) -> int | None:
    if flag is None:
        return None
    mode = state.expand(instruction, flag)
    if not _MODE.match(mode):
        raise invalid(
            instruction.line, f"--chmod={shown(mode)} is not a valid mode", "write --chmod=755"
        )
    return int(mode, 8)


def _owner(state: _State, instruction: Instruction, flag: str | None) -> str:
    if flag is None:
        return "0:0"
    owner = state.expand(instruction, flag)
    if not _OWNER.match(owner):
        raise invalid(
            instruction.line,
            f"--chown={shown(owner)} is not a valid owner",
            "write --chown=1000:1000",
        )
    return owner


def _entrypoint(state: _State, instruction: Instruction) -> None:
    # Arguments of the base's program make no sense for another one.
    state.steps.append(
        SetCommand("entrypoint", _command(state, instruction.rest), clears=not state.has_cmd)
    )


def _cmd(state: _State, instruction: Instruction) -> None:
    state.has_cmd = True
    state.steps.append(SetCommand("cmd", _command(state, instruction.rest)))


def _label(state: _State, instruction: Instruction) -> None:
    labels = {}
    for word in state.words(instruction, instruction.rest):
        name, equals, value = word.partition("=")
        if not equals:
            raise invalid(
                instruction.line, f"{shown(word)} is not NAME=value", "use quotes for spaces"
            )
        labels[state.expand(instruction, name)] = state.expand(instruction, value)
    if not labels:
        raise invalid(instruction.line, "LABEL sets nothing", "write LABEL name=value")
    if "" in labels or sum(map(len, [*labels, *labels.values()])) > _MAX_LABELS:
        hint = f"use at most {_MAX_LABELS} characters for all labels"
        raise invalid(instruction.line, "a label has no name, or the labels are too long", hint)
    state.steps.append(SetLabels(labels))


def _shell(state: _State, instruction: Instruction) -> None:
    shell = _list(instruction.rest)
    if not shell or posixpath.basename(shell[0]) not in _SHELLS or not shell[1:]:
        hint = 'write SHELL ["/bin/bash", "-o", "pipefail", "-c"]'
        raise invalid(instruction.line, f"SHELL {shown(instruction.rest)} is not supported", hint)
    state.shell = tuple(shell)


def _ignore(state: _State, instruction: Instruction) -> None:
    state.warnings.append(
        f"Dockerfile line {instruction.line}: {instruction.name} is ignored: "
        f"{_IGNORED[instruction.name]}"
    )


_COMPILE: Final[Mapping[str, Callable[[_State, Instruction], None]]] = {
    "ADD": _copy,
    "ARG": _declare,
    "CMD": _cmd,
    "COPY": _copy,
    "ENTRYPOINT": _entrypoint,
    "ENV": _env,
    "LABEL": _label,
    "RUN": _run,
    "SHELL": _shell,
    "USER": _user,
    "WORKDIR": _workdir,
    **dict.fromkeys(_IGNORED, _ignore),
}


def _list(rest: str) -> list[str] | None:
    """Return the list form, or None if it is not one."""
    if not rest.startswith("["):
        return None
    try:
        parsed = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return parsed if all(isinstance(item, str) for item in parsed) else None


def _command(state: _State, rest: str) -> tuple[str, ...]:
    words = _list(rest)
    return (*state.shell, rest) if words is None else tuple(words)


def _refuse_hidden(instruction: Instruction, path: str) -> None:
    if is_hidden(path):
        hint = "a sandbox has its own directory there; use another one, such as /srv"
        raise invalid(instruction.line, f"files in {shown(path)} are not kept in an image", hint)
