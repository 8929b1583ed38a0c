"""A Dockerfile as a recipe of steps. Pure.

FROM, RUN, COPY, ADD, ENV, ARG, WORKDIR, USER, ENTRYPOINT and CMD are supported.
Anything else is InvalidRequest with its line: an instruction that is silently ignored would build
another image than its author meant. `parse_dockerfile` finds the base; `steps_of` needs the base's
configuration, because variables may refer to it.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidImage, InvalidRequest, PayloadTooLarge
from sandkasten.images.builder.dockerfile_lines import invalid, split_lines
from sandkasten.images.builder.dockerfile_words import WordError, expand, split_words
from sandkasten.images.builder.recipe import (
    HIDDEN,
    MAX_STEPS,
    USER,
    Copy,
    Run,
    SetCommand,
    SetEnv,
    SetUser,
    SetWorkdir,
)
from sandkasten.images.image_config import machine_architecture
from sandkasten.images.image_names import checked_name
from sandkasten.model.environment import checked_environment
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.images.builder.dockerfile_lines import Instruction
    from sandkasten.images.builder.dockerignore import DockerIgnore
    from sandkasten.images.builder.recipe import Step
    from sandkasten.images.image_config import ImageConfig
    from sandkasten.model.sandbox.network_policy import NetworkPolicy

SCRATCH: Final = "scratch"
_KNOWN: Final = (
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR",
)  # fmt: skip
_OTHERS: Final = {
    "EXPOSE": "ports need no declaration here; remove the line",
    "HEALTHCHECK": "a sandbox does not check its commands; remove the line",
    "LABEL": "remove the line; labels belong to sandboxes (--label)",
    "MAINTAINER": "remove the line",
    "ONBUILD": "put the instruction into the Dockerfile that uses this image",
    "SHELL": 'use the list form: RUN ["/bin/bash", "-c", "…"]',
    "STOPSIGNAL": "a sandbox is always ended completely; remove the line",
    "VOLUME": "the workspace is the place for files that change; remove the line",
}
_SHELL: Final = ("/bin/sh", "-c")
_ARG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OWNER: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}(?::[A-Za-z0-9_][\w.-]{0,63})?\Z")
_MODE: Final = re.compile(r"0?[0-7]{3}\Z")
_ADDRESS: Final = re.compile(r"(?:[a-z][a-z0-9+.-]*://|git@)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    base: str
    instructions: tuple[Instruction, ...]
    """Those after FROM."""
    escape: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Values given by the caller, and those of ARG before FROM."""
    line: int = 1


def parse_dockerfile(data: bytes, build_args: Mapping[str, str]) -> Dockerfile:
    lines = split_lines(data)
    early: dict[str, str] = _platform()
    declared: set[str] = set(early)
    base: Dockerfile | None = None
    for number, one in enumerate(lines.instructions):
        _check_known(one)
        if one.name == "FROM":
            if base is not None:
                hint = "build the first part as an image of its own and name it in FROM"
                raise invalid(one.line, "a second stage (FROM) is not supported", hint)
            name = _base(one, early, lines.escape)
            rest = lines.instructions[number + 1 :]
            base = Dockerfile(name, rest, lines.escape, {**early, **build_args}, one.line)
        elif one.name == "ARG":
            for name, default in _arg(one, lines.escape, early):
                declared.add(name)
                if base is None:
                    value = build_args.get(name, default)
                    if value is not None:
                        early[name] = value
        elif base is None:
            raise invalid(one.line, f"{one.name} before FROM", "begin with FROM IMAGE")
    if base is None:
        raise InvalidRequest("the Dockerfile has no FROM", hint="begin with FROM IMAGE")
    if len(base.instructions) > MAX_STEPS:
        raise InvalidRequest(
            f"the Dockerfile has more than {MAX_STEPS} instructions", hint="join some of them"
        )
    for name in build_args:
        if name not in declared:
            raise InvalidRequest(
                f"the Dockerfile has no ARG {shown(name)}", hint=did_you_mean(name, declared)
            )
    return base


def steps_of(
    file: Dockerfile, config: ImageConfig, network: NetworkPolicy, ignore: DockerIgnore
) -> tuple[Step, ...]:
    """Return what the instructions do to a base with this configuration."""
    state = _State(
        file,
        {"PATH": DEFAULT_PATH, **config.env},
        posixpath.normpath("/" + (config.workdir or "/").lstrip("/")),
        network,
        ignore,
    )
    for one in file.instructions:
        _COMPILE[one.name](state, one)
    return tuple(state.steps)


@dataclass(slots=True)
class _State:
    file: Dockerfile
    env: dict[str, str]
    workdir: str
    network: NetworkPolicy
    ignore: DockerIgnore
    args: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    has_cmd: bool = False

    def expand(self, one: Instruction, text: str) -> str:
        return _expanded(one, text, {**self.args, **self.env}, self.file.escape)

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
    for name, default in _arg(one, state.file.escape, {**state.args, **state.env}):
        value = state.file.arguments.get(name, default)
        if value is not None:
            state.args[name] = value


def _workdir(state: _State, one: Instruction) -> None:
    path = state.expand(one, one.rest)
    if not path or not path.isprintable() or len(path) > 4096:
        raise invalid(one.line, "WORKDIR names no directory", "write WORKDIR /path")
    state.workdir = posixpath.normpath(posixpath.join(state.workdir, path))
    _refuse_hidden(one, state.workdir)
    state.steps.append(SetWorkdir(state.workdir))


def _user(state: _State, one: Instruction) -> None:
    name = state.expand(one, one.rest)
    if not USER.match(name):
        raise invalid(one.line, f"{shown(name)} is not a user", "write a name or a number")
    state.steps.append(SetUser(name))


def _run(state: _State, one: Instruction) -> None:
    flags, rest = _flags(one)
    for flag in flags:
        hint = (
            "remove it; --allow of image build gives a network"
            if flag == "network"
            else ("remove it, and copy what the command needs")
        )
        raise invalid(one.line, f"RUN --{flag} is not supported", hint)
    if one.heredocs:
        command = _script(one, rest)
        argv: tuple[str, ...] = (*_SHELL, command)
    else:
        argv = _command(rest)
        command = rest
    if not rest or not argv:
        raise invalid(one.line, "RUN without a command", "write RUN COMMAND")
    # Docker passes arguments to commands as variables, and those of ENV win.
    args = {name: value for name, value in state.args.items() if name not in state.env}
    state.steps.append(Run(command, state.network, argv, args))


def _script(one: Instruction, rest: str) -> str:
    """Return what the shell runs: a command with its here-documents, or a here-document alone."""
    if len(one.heredocs) == 1 and re.fullmatch(r"<<-?['\"]?[\w.]+['\"]?", rest):
        (script,) = one.heredocs
        if script.content.startswith("#!"):
            hint = "name the program: RUN python3 <<EOF"
            raise invalid(one.line, "a here-document with #! is not supported", hint)
        return script.content
    return rest + "\n" + "".join(heredoc.text for heredoc in one.heredocs)


def _copy(state: _State, one: Instruction) -> None:
    flags, rest = _flags(one)
    for flag in flags:
        if flag not in ("chown", "chmod"):
            hint = "remove it" if flag != "from" else "copy from the directory of the build"
            raise invalid(one.line, f"{one.name} --{flag} is not supported", hint)
    if one.heredocs:
        hint = "write the file into the directory of the build, or use RUN cat > FILE <<EOF"
        raise invalid(one.line, f"{one.name} of a here-document is not supported", hint)
    words = _list(rest)
    if words is None:
        words = state.words(one, rest)
    words = [state.expand(one, word) for word in words]
    if len(words) < 2:
        raise invalid(one.line, f"{one.name} needs a source and a target", "write SOURCE /TARGET")
    *sources, to = words
    target = posixpath.normpath(posixpath.join(state.workdir, to or "."))
    # `//` is a path of its own in POSIX, and the root here.
    target = "/" + target.lstrip("/")
    if (to.endswith(("/", "/.")) or to in (".", "")) and target != "/":
        target += "/"
    if len(sources) > 1 and not target.endswith("/"):
        raise invalid(one.line, f"the target of several sources is {shown(to)}", "end it with /")
    if not target.isprintable() or len(target) > 4096:
        raise invalid(one.line, f"{shown(to)} is not a path", "write /TARGET")
    _refuse_hidden(one, target)
    state.steps.append(
        Copy(
            tuple(_source(one, source) for source in sources),
            target,
            _mode(state, one, flags.get("chmod")),
            _owner(state, one, flags.get("chown")),
            patterns=True,
            archives=one.name != "ADD",
            ignore=state.ignore,
        )
    )


def _source(one: Instruction, source: str) -> str:
    if _ADDRESS.match(source):
        hint = "download it in a RUN, with image build --allow HOST"
        raise invalid(one.line, f"{one.name} of an address is not supported", hint)
    if not source or "\0" in source or len(source) > 4096:
        raise invalid(one.line, f"{one.name} has an empty source", "write SOURCE /TARGET")
    # A path of the build's directory may begin with a slash.
    clean = posixpath.normpath(source.lstrip("/") or ".")
    if clean.split("/")[0] == "..":
        hint = "only files below the directory of the build can be copied"
        raise invalid(one.line, f"{shown(source)} is outside of the build's directory", hint)
    return clean


def _mode(state: _State, one: Instruction, flag: str | None) -> int | None:
    if flag is None:
        return None
    mode = state.expand(one, flag)
    if not _MODE.match(mode):
        raise invalid(one.line, f"--chmod={shown(mode)} is not a mode", "write --chmod=755")
    return int(mode, 8)


def _owner(state: _State, one: Instruction, flag: str | None) -> str:
    if flag is None:
        return "0:0"
    owner = state.expand(one, flag)
    if not _OWNER.match(owner):
        raise invalid(
            one.line, f"--chown={shown(owner)} is not an owner", "write --chown=1000:1000"
        )
    return owner


def _entrypoint(state: _State, one: Instruction) -> None:
    # Arguments of the base's program make no sense for another one.
    state.steps.append(SetCommand("entrypoint", _command(one.rest), clears=not state.has_cmd))


def _cmd(state: _State, one: Instruction) -> None:
    state.has_cmd = True
    state.steps.append(SetCommand("cmd", _command(one.rest)))


_COMPILE: Final[Mapping[str, Callable[[_State, Instruction], None]]] = {
    "ADD": _copy,
    "ARG": _declare,
    "CMD": _cmd,
    "COPY": _copy,
    "ENTRYPOINT": _entrypoint,
    "ENV": _env,
    "RUN": _run,
    "USER": _user,
    "WORKDIR": _workdir,
}


def _check_known(one: Instruction) -> None:
    if one.name in _OTHERS:
        raise invalid(one.line, f"{one.name} is not supported", _OTHERS[one.name])
    if one.name not in _KNOWN:
        hint = did_you_mean(one.name, _KNOWN)
        raise invalid(one.line, f"{shown(one.name)} is not an instruction", hint)


def _base(one: Instruction, values: Mapping[str, str], escape: str) -> str:
    flags, rest = _flags(one)
    for flag in flags:
        hint = "pull the image for that platform first (sandkasten image pull --platform)"
        raise invalid(one.line, f"FROM --{flag} is not supported", hint)
    words = [_expanded(one, word, values, escape) for word in split_words(rest, escape)]
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise invalid(one.line, "FROM must name one image", "write FROM IMAGE")
    try:
        return words[0] if words[0] == SCRATCH else checked_name(words[0])
    except InvalidImage as exc:
        raise invalid(one.line, exc.message, exc.hint) from exc


def _arg(one: Instruction, escape: str, values: Mapping[str, str]) -> list[tuple[str, str | None]]:
    words = split_words(one.rest, escape)
    if not words:
        raise invalid(one.line, "ARG declares nothing", "write ARG NAME or ARG NAME=default")
    found: list[tuple[str, str | None]] = []
    known = dict(values)
    for word in words:
        name, equals, default = word.partition("=")
        if not _ARG.match(name):
            raise invalid(one.line, f"{shown(name)} is not a name", "write ARG NAME=default")
        value = _expanded(one, default, known, escape) if equals else None
        if value is not None:
            known[name] = value
        found.append((name, value))
    return found


def _expanded(one: Instruction, text: str, values: Mapping[str, str], escape: str) -> str:
    try:
        return expand(text, values, escape)
    except WordError as exc:
        raise invalid(one.line, str(exc), "see the quotes and the variables of this line") from exc


def _flags(one: Instruction) -> tuple[dict[str, str], str]:
    """Return the `--name=value` words at the beginning, and the rest."""
    flags, rest = {}, one.rest
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, _, value = word.removeprefix("--").partition("=")
        flags[name] = value
        rest = rest.lstrip()
    return flags, rest


def _list(rest: str) -> list[str] | None:
    """Return the list form, or None if it is not one."""
    if not rest.startswith("["):
        return None
    try:
        found = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(one, str) for one in found) else None


def _command(rest: str) -> tuple[str, ...]:
    found = _list(rest)
    return (*_SHELL, rest) if found is None else tuple(found)


def _refuse_hidden(one: Instruction, path: str) -> None:
    if "/" + path.split("/")[1] in HIDDEN:
        hint = "a sandbox has its own directory there; use another one, such as /srv"
        raise invalid(one.line, f"files in {shown(path)} are not kept in an image", hint)


def _platform() -> dict[str, str]:
    """Return the arguments that exist without being given."""
    machine = machine_architecture()
    values = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine, "VARIANT": ""}
    return {
        f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in values.items()
    }
