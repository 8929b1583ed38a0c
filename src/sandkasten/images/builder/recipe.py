"""Parse a recipe: a base image, and the steps that change it. Pure.

Everything is checked before anything is built, and an error names its step. Raises InvalidRequest,
InvalidImage for the base, and PolicyDenied for a network that the operator does not permit.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol

from sandkasten.errors import InvalidRequest, PayloadTooLarge, PolicyDenied, SandkastenError
from sandkasten.images.builder.dockerignore import NOTHING, DockerIgnore
from sandkasten.images.image_names import checked_name
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import checked_environment
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy, parse_network
from sandkasten.model.sandbox.package_sets import PYTHON_DIR, checked_packages
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten.images.image_config import ImageConfig

    ReadNetwork = Callable[[object], NetworkPolicy]
    """Return the network policy of a value, within what the operator permits."""

MAX_STEPS: Final = 100
_MAX_TEXT: Final = 64 * 1024
_KEYS: Final = ("base", "network", "steps")
_KINDS: Final = ("copy", "run", "pip", "env", "workdir", "user")
USER: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?\Z"
)
_OWNER: Final = re.compile(r"([0-9]{1,5})(?::([0-9]{1,5}))?\Z")
# Copies packages to where the image's python3 finds them, their programs to the PATH, and their
# data, such as kernels of Jupyter, to where pip would put it.
_INSTALL: Final = f"""\
to=$(python3 -I -c 'import site; print(site.getsitepackages()[0])')
mkdir -p "$to"
cp -R {PYTHON_DIR}/. "$to"
for part in bin share; do
    if [ -d "$to/$part" ] && [ ! -e "$to/$part/__init__.py" ]; then
        mkdir -p "/usr/local/$part"
        cp -R "$to/$part/." "/usr/local/$part"
        rm -r "$to/$part"
    fi
done"""
# A sandbox mounts its own there, which hides the image's content.
HIDDEN: Final = ("/proc", "/dev", "/sys", "/run", "/tmp", "/var/tmp", "/workspace", "/work")  # noqa: S108


def is_hidden(path: str) -> bool:
    """Return whether a sandbox has its own directory at an absolute path, or above it."""
    return any(f"{path}/".startswith(f"{one}/") for one in HIDDEN)


@dataclass(frozen=True, slots=True)
class Copy:
    """`sources` are below the build's directory; `to` is absolute, with a trailing slash for a
    directory.
    """

    sources: tuple[str, ...]
    to: str
    mode: int | None = None
    owner: str = "0:0"
    """Numbers, or names of the image's accounts."""
    patterns: bool = False
    """Whether `*`, `?` and `[a-z]` in a source are patterns."""
    archives: bool = True
    """Whether a tar archive may be copied: Docker's ADD would unpack it."""
    ignore: DockerIgnore = NOTHING
    stage: int | None = None
    """The stage whose files are copied; None: those of the build's directory."""

    @property
    def text(self) -> str:
        return f"copy {' '.join(self.sources)} to {self.to}"


@dataclass(frozen=True, slots=True)
class Run:
    """A command of a recipe, which root runs, or of a Dockerfile (`argv`), which the image's user
    runs.
    """

    command: str
    network: NetworkPolicy = CLOSED
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables that the image does not keep."""
    pip: tuple[str, ...] = ()
    """Packages that this machine provides for the command, as for a sandbox."""

    @property
    def text(self) -> str:
        if self.pip:
            return f"pip {' '.join(self.pip)}"
        first, _, more = self.command.strip().partition("\n")
        return f"run {first}{' …' if more else ''}"


@dataclass(frozen=True, slots=True)
class SetEnv:
    env: Mapping[str, str]

    @property
    def text(self) -> str:
        return f"env {' '.join(self.env)}"


@dataclass(frozen=True, slots=True)
class SetLabels:
    labels: Mapping[str, str]

    @property
    def text(self) -> str:
        return f"label {' '.join(self.labels)}"


@dataclass(frozen=True, slots=True)
class SetWorkdir:
    path: str

    @property
    def text(self) -> str:
        return f"workdir {self.path}"


@dataclass(frozen=True, slots=True)
class SetUser:
    user: str

    @property
    def text(self) -> str:
        return f"user {self.user}"


@dataclass(frozen=True, slots=True)
class SetCommand:
    """The command that other runtimes start. A sandbox stores and shows it, and never runs it."""

    kind: Literal["entrypoint", "cmd"]
    argv: tuple[str, ...]
    clears: bool = False
    """Whether a new entrypoint removes the base's `cmd`."""

    @property
    def text(self) -> str:
        return f"{self.kind} {' '.join(self.argv)}"


Setting = SetEnv | SetLabels | SetWorkdir | SetUser | SetCommand
"""A step that changes only the configuration of the image."""
Step = Copy | Run | Setting


class Base(Protocol):
    """The base of a stage: an image of the store, or `scratch`."""

    @property
    def layers(self) -> tuple[str, ...]: ...
    @property
    def config(self) -> ImageConfig: ...


@dataclass(frozen=True, slots=True)
class Stage:
    base: Base | int
    """A number refers to an earlier stage."""
    steps: tuple[Step, ...]
    lines: tuple[int, ...] = ()
    """The line of each step in a Dockerfile."""


@dataclass(frozen=True, slots=True)
class Recipe:
    base: str
    steps: tuple[Step, ...]
    lines: tuple[int, ...] = ()
    stages: tuple[Stage, ...] = ()
    """The stages before the last one, whose steps are `steps`."""
    warnings: tuple[str, ...] = ()


def configured(config: ImageConfig, step: Setting) -> ImageConfig:
    """Return the configuration of an image after a step."""
    match step:
        case SetCommand("cmd"):
            return replace(config, cmd=step.argv)
        case SetCommand():
            return replace(config, entrypoint=step.argv, cmd=() if step.clears else config.cmd)
        case SetEnv():
            return replace(config, env={**config.env, **step.env})
        case SetLabels():
            return replace(config, labels={**config.labels, **step.labels})
        case SetWorkdir():
            return replace(config, workdir=step.path.rstrip("/") or "/")
        case SetUser():
            return replace(config, user=step.user)


def configured_by(config: ImageConfig, steps: Sequence[Step]) -> ImageConfig:
    """Return the configuration of an image after all steps."""
    for step in steps:
        if not isinstance(step, Copy | Run):
            config = configured(config, step)
    return config


def parse_recipe(
    tree: object, read_network: ReadNetwork = parse_network, allow: Sequence[str] = ()
) -> Recipe:
    """Return the recipe. `allow` are rules in addition to those of its own `network`."""
    if not isinstance(tree, dict):
        raise InvalidRequest("a recipe must be a mapping", hint="write base: and steps:")
    for key in tree:
        if key not in _KEYS:
            raise InvalidRequest(
                f"a recipe has no key {shown(str(key))}", hint=did_you_mean(str(key), _KEYS)
            )
    steps = tree.get("steps", [])
    if not isinstance(steps, list) or len(steps) > MAX_STEPS:
        raise InvalidRequest(
            f"steps must be a list of at most {MAX_STEPS} steps", hint="begin each step with a dash"
        )
    base = checked_name(tree.get("base"))
    network = read_network(with_rules(tree.get("network"), allow))
    return Recipe(
        base,
        tuple(_step(number, one, network, read_network) for number, one in enumerate(steps, 1)),
    )


def with_rules(network: object, allow: Sequence[str]) -> object:
    """Return a network value with more rules."""
    if not allow or network == "full" or network is True:
        return network
    if not isinstance(network, dict):
        parse_network(network)
        return {"allow": list(allow)}
    own = network.get("allow") or []
    return {**network, "allow": [*own, *allow]} if isinstance(own, list) else network


def _step(number: int, step: object, network: NetworkPolicy, read_network: ReadNetwork) -> Step:
    kinds = [key for key in step if key in _KINDS] if isinstance(step, dict) else []
    if not isinstance(step, dict) or len(kinds) != 1:
        raise _wrong(number, "must have one action", f"write one of: {', '.join(_KINDS)}")
    kind = str(kinds[0])
    known = {kind, "network"} if kind == "run" else {kind}
    for key in step:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise _wrong(number, f"has an unknown key {shown(str(key))}", hint)
    if "network" in step:
        network = _network(number, step["network"], read_network)
    value = step[kind]
    match kind:
        case "copy":
            return _copy(number, value)
        case "run":
            return _run(number, value, network)
        case "pip":
            return _pip(number, value)
        case "env":
            return _env(number, value)
        case "workdir":
            return SetWorkdir(_absolute(number, "workdir", value))
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not USER.match(value):
        raise _wrong(
            number, f"has an invalid user: {shown(str(value))}", "write a name or a number"
        )
    return SetUser(value)


def _copy(number: int, value: object) -> Copy:
    if not isinstance(value, dict):
        raise _wrong(number, "must have a mapping in copy", "write copy: {from: FILE, to: /PATH}")
    known = ("from", "to", "mode", "owner")
    for key in value:
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise _wrong(number, f"has an unknown key {shown(str(key))}", hint)
    source = value.get("from")
    if not isinstance(source, str) or not source or "\0" in source or len(source) > 4096:
        raise _wrong(number, "has no valid path in from", "write copy: {from: FILE, to: /PATH}")
    clean = posixpath.normpath(source)
    if clean.startswith("/") or clean.split("/")[0] == "..":
        hint = "use a path below the directory of the recipe"
        raise _wrong(
            number, f"copies {shown(source)}, which is outside the recipe's directory", hint
        )
    to = _absolute(number, "to", value.get("to"))
    if is_hidden(to):
        hint = "a sandbox has its own directory there; copy to another one"
        raise _wrong(number, f"copies to {shown(to)}, which is not visible in a sandbox", hint)
    owner = _owner(number, value.get("owner"))
    return Copy((clean,), to, _mode(number, value.get("mode")), owner)


def _owner(number: int, value: object) -> str:
    if value is None:
        return "0:0"
    found = _OWNER.match(str(value)) if isinstance(value, str | int) else None
    if found is None or max(int(found[1]), int(found[2] or 0)) > 65533:
        raise _wrong(
            number, f"has an invalid owner: {shown(str(value))}", 'write owner: "1000:1000"'
        )
    return f"{found[1]}:{found[2] or found[1]}"


def _mode(number: int, value: object) -> int | None:
    if value is None:
        return None
    # Only as a string: YAML reads 0644 as octal and 644 as decimal, which is never meant.
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value):
        return int(value, 8)
    raise _wrong(
        number, f"has an invalid mode: {shown(str(value))}", 'write mode: "0755", in quotes'
    )


def _run(number: int, value: object, network: NetworkPolicy) -> Run:
    if not isinstance(value, str) or not value.strip() or "\0" in value or len(value) > _MAX_TEXT:
        raise _wrong(
            number, "has no valid command in run", "write run: and a command for the shell"
        )
    return Run(value, network)


def _pip(number: int, value: object) -> Run:
    try:
        packages = checked_packages(value).pip
    except InvalidRequest as exc:
        raise _wrong(number, f"has invalid packages: {exc.message}", exc.hint) from exc
    if not packages:
        raise _wrong(number, "has no packages in pip", "write pip: [NAME, NAME==VERSION]")
    return Run(_INSTALL, pip=packages)


def _network(number: int, value: object, read_network: ReadNetwork) -> NetworkPolicy:
    try:
        return read_network(value)
    except (InvalidRequest, PolicyDenied) as exc:
        raise type(exc)(
            f"step {number}: {exc.message}", hint=exc.hint, **{**exc.details, "step": number}
        ) from exc


def _env(number: int, value: object) -> SetEnv:
    if not isinstance(value, dict):
        raise _wrong(number, "must have a mapping in env", "write env: {NAME: value}")
    texts = {
        str(key): str(one) if isinstance(one, int | float) else one
        for key, one in value.items()
        if not isinstance(one, bool)
    }
    if len(texts) != len(value):
        raise _wrong(number, "sets a variable to a boolean", "write the value in quotes")
    try:
        return SetEnv(checked_environment(texts))
    except (InvalidRequest, PayloadTooLarge) as exc:
        raise _wrong(number, f"sets an invalid variable: {exc.message}", exc.hint) from exc


def _absolute(number: int, name: str, value: object) -> str:
    if (
        not isinstance(value, str)
        or not value.startswith("/")
        or not value.isprintable()
        or len(value) > 4096
        or ".." in value.split("/")
    ):
        raise _wrong(
            number, f"must have an absolute path in {name}, got {shown(str(value))}", "write /path"
        )
    clean = posixpath.normpath("/" + value.lstrip("/"))
    return clean + "/" if value.endswith("/") and clean != "/" else clean


def _wrong(number: int, what: str, hint: str) -> SandkastenError:
    return InvalidRequest(f"step {number} {what}", hint=hint, step=number)
