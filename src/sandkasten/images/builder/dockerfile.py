"""A stage of a Dockerfile as a recipe of steps. Pure.

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
from sandkasten.images.builder.dockerfile_lines import invalid
from sandkasten.images.builder.dockerfile_stages import arguments_of, expanded, flags_of
from sandkasten.images.builder.dockerfile_words import split_words
from sandkasten.images.builder.dockerignore import NOTHING
from sandkasten.images.builder.recipe import (
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
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import checked_environment
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH, WORKSPACE
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.images.builder.dockerfile_lines import Instruction
    from sandkasten.images.builder.dockerfile_stages import Dockerfile
    from sandkasten.images.builder.dockerignore import DockerIgnore
    from sandkasten.images.builder.recipe import Step
    from sandkasten.images.image_config import ImageConfig
    from sandkasten.model.sandbox.network_policy import NetworkPolicy

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
    for one in file.instructions:
        _COMPILE[one.name](state, one)
        lines += [one.line] * (len(state.steps) - len(lines))
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

    def expand(self, one: Instruction, text: str) -> str:
        return expanded(one, text, ChainMap(self.env, self.args), self.file.escape)

    def words(self, one: Instruction, text: str) -> list[str]:
        return split_words(text, self.file.escape)


def _env(state: _State, one: Instruction) -> None:
    words = state.words(one, one.rest)
    if not words:
        raise invalid(one.line, "ENV sets nothing", "write ENV NAME=value")
    if "=" not in words[0]:
        # The old form: one name, and all the rest is its value.
        value = one.rest.removeprefix(words[0]).strip()
        if not value:
            raise invalid(one.line, f"ENV {shown(words[0])} has no value", "write ENV NAME=value")
        found = {words[0]: state.expand(one, value)}
    else:
        # Every value is read before any of them is set.
        found = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise invalid(one.line, f"{shown(word)} is not NAME=value", "use quotes for spaces")
            found[state.expand(one, name)] = state.expand(one, value)
    try:
        checked = checked_environment(found)
    except (InvalidRequest, PayloadTooLarge) as exc:
        raise invalid(one.line, exc.message, exc.hint) from exc
    state.env.update(checked)
    state.steps.append(SetEnv(checked))


def _declare(state: _State, one: Instruction) -> None:
    for name, default in arguments_of(one, state.file.escape, {**state.args, **state.env}):
        value = state.file.arguments.get(name, default)
        if value is not None:
            state.args[name] = value


def _workdir(state: _State, one: Instruction) -> None:
    path = state.expand(one, one.rest)
    if not path or not path.isprintable() or len(path) > 4096:
        raise invalid(one.line, "WORKDIR requires a directory", "write WORKDIR /path")
    state.workdir = posixpath.normpath(posixpath.join(state.workdir, path))
    # Every sandbox has this directory, so nothing is lost.
    if state.workdir != WORKSPACE:
        _refuse_hidden(one, state.workdir)
    state.steps.append(SetWorkdir(state.workdir))


def _user(state: _State, one: Instruction) -> None:
    name = state.expand(one, one.rest)
    if not USER.match(name):
        raise invalid(one.line, f"{shown(name)} is not a valid user", "write a name or a number")
    state.steps.append(SetUser(name))


def _run(state: _State, one: Instruction) -> None:
    flags, rest = flags_of(one)
    for flag in flags:
        hint = (
            "remove it, and use image build --allow HOST"
            if flag == "network"
            else "remove it, and copy what the command needs"
        )
        raise invalid(one.line, f"RUN --{flag} is not supported", hint)
    if one.heredocs:
        command = _script(one, rest)
        argv: tuple[str, ...] = (*state.shell, command)
    else:
        argv = _command(state, rest)
        command = rest
    if not rest or not argv:
        raise invalid(one.line, "RUN requires a command", "write RUN COMMAND")
    # Docker passes arguments to commands as variables, and those of ENV win.
    args = {name: value for name, value in state.args.items() if name not in state.env}
    state.steps.append(Run(command, state.network, argv, args))


def _script(one: Instruction, rest: str) -> str:
    """Return the script for the shell: a command with its here-documents, or one of these alone."""
    if len(one.heredocs) == 1 and re.fullmatch(r"<<-?['\"]?[\w.]+['\"]?", rest):
        (script,) = one.heredocs
        if script.content.startswith("#!"):
            hint = "name the program: RUN python3 <<EOF"
            raise invalid(one.line, "a here-document with #! is not supported", hint)
        return script.content
    return rest + "\n" + "".join(heredoc.text for heredoc in one.heredocs)


def _copy(state: _State, one: Instruction) -> None:
    flags, rest = flags_of(one)
    for flag in flags:
        if flag not in ("chown", "chmod", "from") or (flag == "from" and one.name == "ADD"):
            raise invalid(one.line, f"{one.name} --{flag} is not supported", "remove it")
    if one.heredocs:
        hint = "write the file into the directory of the build, or use RUN cat > FILE <<EOF"
        raise invalid(one.line, f"{one.name} of a here-document is not supported", hint)
    words = _list(rest)
    if words is None:
        words = state.words(one, rest)
    words = [state.expand(one, word) for word in words]
    if len(words) < 2:
        raise invalid(
            one.line, f"{one.name} requires a source and a target", "write SOURCE /TARGET"
        )
    *sources, to = words
    target = posixpath.normpath(posixpath.join(state.workdir, to or "."))
    # `//` is a path of its own in POSIX, and the root here.
    target = "/" + target.lstrip("/")
    if (to.endswith(("/", "/.")) or to in (".", "")) and target != "/":
        target += "/"
    if len(sources) > 1 and not target.endswith("/"):
        raise invalid(
            one.line, f"several sources require a directory, got {shown(to)}", "end it with /"
        )
    if not target.isprintable() or len(target) > 4096:
        raise invalid(one.line, f"{shown(to)} is not a valid path", "write /TARGET")
    _refuse_hidden(one, target)
    stage = state.file.copies.get(one.line)
    state.steps.append(
        Copy(
            tuple(_source(one, source) for source in sources),
            target,
            _mode(state, one, flags.get("chmod")),
            _owner(state, one, flags.get("chown")),
            patterns=True,
            archives=one.name != "ADD",
            ignore=state.ignore if stage is None else NOTHING,
            stage=stage,
        )
    )


def _source(one: Instruction, source: str) -> str:
    if _ADDRESS.match(source):
        hint = "download it in a RUN, with image build --allow HOST"
        raise invalid(one.line, f"{one.name} of a URL is not supported", hint)
    if not source or "\0" in source or len(source) > 4096:
        raise invalid(one.line, f"{one.name} has an invalid source", "write SOURCE /TARGET")
    # A path of the build's directory may begin with a slash.
    clean = posixpath.normpath(source.lstrip("/") or ".")
    if clean.split("/")[0] == "..":
        hint = "only files below the directory of the build can be copied"
        raise invalid(one.line, f"{shown(source)} is outside the build's directory", hint)
    return clean


def _mode(state: _State, one: Instruction, flag: str | None) -> int | None:
    if flag is None:
        return None
    mode = state.expand(one, flag)
    if not _MODE.match(mode):
        raise invalid(one.line, f"--chmod={shown(mode)} is not a valid mode", "write --chmod=755")
    return int(mode, 8)


def _owner(state: _State, one: Instruction, flag: str | None) -> str:
    if flag is None:
        return "0:0"
    owner = state.expand(one, flag)
    if not _OWNER.match(owner):
        raise invalid(
            one.line, f"--chown={shown(owner)} is not a valid owner", "write --chown=1000:1000"
        )
    return owner


def _entrypoint(state: _State, one: Instruction) -> None:
    # Arguments of the base's program make no sense for another one.
    state.steps.append(
        SetCommand("entrypoint", _command(state, one.rest), clears=not state.has_cmd)
    )


def _cmd(state: _State, one: Instruction) -> None:
    state.has_cmd = True
    state.steps.append(SetCommand("cmd", _command(state, one.rest)))


def _label(state: _State, one: Instruction) -> None:
    labels = {}
    for word in state.words(one, one.rest):
        name, equals, value = word.partition("=")
        if not equals:
            raise invalid(one.line, f"{shown(word)} is not NAME=value", "use quotes for spaces")
        labels[state.expand(one, name)] = state.expand(one, value)
    if not labels:
        raise invalid(one.line, "LABEL sets nothing", "write LABEL name=value")
    if "" in labels or sum(map(len, [*labels, *labels.values()])) > _MAX_LABELS:
        hint = f"use at most {_MAX_LABELS} characters for all labels"
        raise invalid(one.line, "a label has no name, or the labels are too long", hint)
    state.steps.append(SetLabels(labels))


def _shell(state: _State, one: Instruction) -> None:
    found = _list(one.rest)
    if not found or posixpath.basename(found[0]) not in _SHELLS or not found[1:]:
        hint = 'write SHELL ["/bin/bash", "-o", "pipefail", "-c"]'
        raise invalid(one.line, f"SHELL {shown(one.rest)} is not supported", hint)
    state.shell = tuple(found)


def _ignore(state: _State, one: Instruction) -> None:
    state.warnings.append(
        f"Dockerfile line {one.line}: {one.name} is ignored: {_IGNORED[one.name]}"
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
        found = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(one, str) for one in found) else None


def _command(state: _State, rest: str) -> tuple[str, ...]:
    found = _list(rest)
    return (*state.shell, rest) if found is None else tuple(found)


def _refuse_hidden(one: Instruction, path: str) -> None:
    if is_hidden(path):
        hint = "a sandbox has its own directory there; use another one, such as /srv"
        raise invalid(one.line, f"files in {shown(path)} are not kept in an image", hint)
