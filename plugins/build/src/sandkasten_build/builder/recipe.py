"""Parse a recipe: a base image, and the steps that change it. Pure.

Everything is checked before anything is built, and an error names its step. Raises InvalidRequest,
InvalidImage for the base, and PolicyDenied for a network that the operator does not permit.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest, PayloadTooLarge, PolicyDenied, SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.environment import checked_environment
from sandkasten.model.sandbox.network_policy import NetworkPolicy, parse_network
from sandkasten.model.sandbox.package_sets import PYTHON_DIR, checked_packages
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_build.builder.build_plan import (
    MAX_STEPS,
    USER,
    Copy,
    Run,
    SetEnv,
    SetUser,
    SetWorkdir,
    is_hidden,
)
from sandkasten_runtime.images.image_names import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandkasten_build.builder.build_plan import Step

    ReadNetwork = Callable[[object], NetworkPolicy]
    """Return the network policy of a value, within what the operator permits."""

_MAX_TEXT: Final = 64 * 1024
_KEYS: Final = ("base", "network", "steps")
_KINDS: Final = ("copy", "run", "pip", "env", "workdir", "user")
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


@dataclass(frozen=True, slots=True)
class Recipe:
    base: str
    """The name of an image."""
    steps: tuple[Step, ...]


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
        tuple(_step(number, step, network, read_network) for number, step in enumerate(steps, 1)),
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
    allowed = {kind, "network"} if kind == "run" else {kind}
    for key in step:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
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
    allowed = ("from", "to", "mode", "owner")
    for key in value:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
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
    match = _OWNER.match(str(value)) if isinstance(value, str | int) else None
    if match is None or max(int(match[1]), int(match[2] or 0)) > 65533:
        raise _wrong(
            number, f"has an invalid owner: {shown(str(value))}", 'write owner: "1000:1000"'
        )
    return f"{match[1]}:{match[2] or match[1]}"


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
        str(key): str(item) if isinstance(item, int | float) else item
        for key, item in value.items()
        if not isinstance(item, bool)
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
