"""Parser of the `sandbox:` field of an agent's frontmatter.

A string is a runtime for compute mode; a mapping has all options. An option with two spellings may
use both if they agree. An error raises InvalidAgent with the path of the field; an unknown key is a
warning. Whether a request is granted is decided elsewhere: see `policy_check`.
"""

from __future__ import annotations

import difflib
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from sandkasten.errors import InvalidAgent, InvalidImage, InvalidRequest
from sandkasten.model.durations import seconds
from sandkasten.model.images.image_name import checked_name
from sandkasten.model.language_runtimes import IMAGE_ALIASES
from sandkasten.model.runs.session_key import SessionKey
from sandkasten.model.sandbox.gpus import parse_gpus
from sandkasten.model.sandbox.limit_names import LIMIT_NAMES, limit_field, parse_limits
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.network_limits import read_limit, requested_limits
from sandkasten.model.sandbox.network_rules import rules_of
from sandkasten.model.sandbox.policy import checked_hostname, checked_profile
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.session_joins import LIMIT_SCOPES
from sandkasten.model.spelling import shown
from sandkasten_agents.definitions.definition_fields import DefinitionFields
from sandkasten_tools.calls.agent_sandbox import AgentSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandkasten.model.sandbox.sandbox_options import Number
    from sandkasten_tools.calls.agent_sandbox import Mode

Sharing = Literal["same", "own", "longest", "opens", "see below"]
"""What a field means for an agent that joins the session of another one:

- same: the session must have it too, or the agent cannot join
- own: it applies to this agent's calls, whatever the session has
- longest: the session gets the longest time that one of its agents asks for
- opens: it matters only for a new session
- see below: each field inside has its own
"""
SANDBOX_FIELDS: Final[Mapping[str, Sharing]] = MappingProxyType(
    {
        "mode": "own",
        "runtime": "opens",
        "image": "same",
        "backend": "same",
        "session": "see below",
        "timeout_seconds": "own",
        "max_stdout_bytes": "own",
        "max_stderr_bytes": "own",
        "allow_network": "same",
        "network": "see below",
        "pip_packages": "same",
        "npm_packages": "same",
        "profile": "same",
        "hostname": "same",
        "gpus": "same",
        "limits": "see below",
    }
)
OPTION_FIELDS: Final = (
    "image",
    "backend",
    "pip_packages",
    "npm_packages",
    "profile",
    "hostname",
    "gpus",
    "limits",
    "idle_timeout_seconds",
)
"""The options of `SandboxOptions` that a file can set and a listing of agents shows."""
SESSION_FIELDS: Final[Mapping[str, Sharing]] = MappingProxyType(
    {"name": "opens", "retain": "longest"}
)
NETWORK_FIELDS: Final[Mapping[str, Sharing]] = MappingProxyType(
    dict.fromkeys(("enabled", "allow", "limits", "secrets", "inspect"), "same")
)
LIMIT_FIELDS: Final[Mapping[str, Sharing]] = MappingProxyType(
    {
        **{
            name: "same" if LIMIT_SCOPES[limit_field(name)] == "session" else "own"
            for name in LIMIT_NAMES
        },
        "gpus": "same",
        "timeout_seconds": "longest",
        "idle_timeout_seconds": "longest",
    }
)

# The widest range that any operator may set: only the type is checked here.
_WIDEST: Final = Limits(max_exec_timeout_s=86_400.0)
_DAY_S: Final = 86_400.0

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?\Z")
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
_VERSION: Final = r"(?:==|>=|<=|~=|!=|<|>)[A-Za-z0-9][A-Za-z0-9.*+!_-]{0,60}"
_PIP: Final = re.compile(
    rf"{_NAME}(?:\[{_NAME}(?:,{_NAME}){{0,20}}\])?(?:{_VERSION}(?:,{_VERSION}){{0,10}})?\Z"
)
_NPM_NAME: Final = r"[a-z0-9][a-z0-9._~-]{0,99}"
_NPM: Final = re.compile(
    rf"(?:@{_NPM_NAME}/)?{_NPM_NAME}(?:@[\^~]?[A-Za-z0-9*<>=][A-Za-z0-9.*+<>=_-]{{0,60}})?\Z"
)
# Installers interpret a name with such a suffix as a file.
_ARCHIVE: Final = re.compile(r"\.(?:whl|zip|tar|tgz|tbz|txz|gz|bz2|xz|lzma)\Z", re.IGNORECASE)


def parse_sandbox(value: object) -> tuple[AgentSandbox, tuple[str, ...]]:
    """Return the request and warnings about fields that look like mistakes."""
    if isinstance(value, str):
        return AgentSandbox(runtime=_image(value, "sandbox")), _nearly("sandbox", value)
    if not isinstance(value, dict):
        raise InvalidAgent(
            "sandbox must be a runtime or a mapping",
            hint="write `sandbox: python`, or `sandbox:` with fields such as mode and limits",
            field="sandbox",
        )
    fields = DefinitionFields(value, "sandbox")
    limits = fields.mapping("limits") or DefinitionFields({}, "sandbox.limits")
    warnings = [*fields.unknown(SANDBOX_FIELDS), *limits.unknown(LIMIT_FIELDS)]
    mode = cast("Mode", fields.choice("mode", ("compute", "code")) or "compute")
    runtime = _image_of(fields, "runtime")
    warnings += _nearly(fields.path("runtime"), runtime)
    session, retain_s = _session(fields, warnings)
    if mode == "compute" and (session is not None or retain_s):
        warnings.append(
            "sandbox.session has no effect in compute mode: every run gets a new sandbox"
        )
    network, network_field = _network(fields, warnings)
    numbers = _limits(fields, limits)
    sandbox = AgentSandbox(
        mode=mode,
        runtime=runtime,
        session=session or "default",
        retain_s=retain_s,
        timeout_seconds=_agreed(
            fields.path("timeout_seconds"),
            fields.number("timeout_seconds", low=0.001, high=_DAY_S),
            limits.path("exec_timeout_seconds"),
            numbers.get("exec_timeout_seconds"),
        ),
        network_field=network_field,
        options=SandboxOptions(
            image=_image_of(fields, "image"),
            backend=fields.text("backend"),
            network=network,
            pip_packages=_packages(fields, "pip_packages", _PIP, "pandas or pandas==2.2.3"),
            npm_packages=_packages(fields, "npm_packages", _NPM, "lodash or @types/node@20.1.0"),
            profile=_checked(fields, "profile", checked_profile),
            hostname=_checked(fields, "hostname", checked_hostname),
            gpus=_gpus(fields, limits),
            limits=MappingProxyType(numbers),
            idle_timeout_seconds=_agreed(
                limits.path("timeout_seconds"),
                limits.number("timeout_seconds", low=1, high=365 * _DAY_S),
                limits.path("idle_timeout_seconds"),
                limits.number("idle_timeout_seconds", low=1, high=365 * _DAY_S),
            ),
        ),
    )
    return sandbox, tuple(warnings)


def _image(value: str, path: str) -> str:
    try:
        return checked_name(value)
    except InvalidImage as exc:
        raise InvalidAgent(f"{path}: {exc.message}", hint=exc.hint, field=path) from exc


def _nearly(path: str, runtime: str | None) -> tuple[str, ...]:
    """Return a warning for a name that is a runtime except for one or two letters."""
    if runtime is None or runtime in IMAGE_ALIASES:
        return ()
    # A longer difference is not a typo: `python-data` is a valid image name.
    near = difflib.get_close_matches(runtime, IMAGE_ALIASES, n=1, cutoff=0.8)
    if not near:
        return ()
    what = f"{path} is interpreted as an image name: {shown(runtime)}"
    return (f"{what} (did you mean {near[0]}?)",)


def _image_of(fields: DefinitionFields, name: str) -> str | None:
    value = fields.text(name)
    return None if value is None else _image(value, fields.path(name))


def _session(fields: DefinitionFields, warnings: list[str]) -> tuple[str | None, float]:
    """Return the name of the session, and for how many seconds it is kept after the run."""
    if not isinstance(fields.values.get("session"), dict):
        return _session_name(fields, "session"), 0.0
    inner = fields.mapping("session") or DefinitionFields({})
    warnings += inner.unknown(SESSION_FIELDS)
    retain = inner.values.get("retain")
    retain_s = 0.0 if retain is None else seconds(retain)
    if retain_s is None or retain_s > 365 * _DAY_S:
        raise inner.wrong("retain", "a duration such as 30m, 1h or 90 (seconds)", retain)
    return _session_name(inner, "name"), retain_s


def _session_name(fields: DefinitionFields, field: str) -> str | None:
    name = fields.text(field)
    if name is None:
        return None
    try:
        return SessionKey("agent", "run", name).name
    except InvalidRequest as exc:
        raise InvalidAgent(
            f"{fields.path(field)} must not be {shown(name)}",
            hint="1 to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            field=fields.path(field),
        ) from exc


def _checked(fields: DefinitionFields, name: str, check: Callable[[str], str]) -> str | None:
    """Return a string that `check` accepts; its InvalidRequest becomes InvalidAgent."""
    value = fields.text(name)
    try:
        return None if value is None else check(value)
    except InvalidRequest as exc:
        path = fields.path(name)
        raise InvalidAgent(f"{path}: {exc.message}", hint=exc.hint, field=path) from exc


def _network(
    fields: DefinitionFields, warnings: list[str]
) -> tuple[str | dict[str, Any] | None, str]:
    """Return `full`, `none`, `{allow: […]}`, or None if nothing is set, and the field for it."""
    flag = fields.flag("allow_network")
    if fields.values.get("network") == "none":
        inner = DefinitionFields({"enabled": False}, fields.path("network"))
    else:
        inner = fields.mapping("network") or DefinitionFields({})
    warnings.extend(inner.unknown(NETWORK_FIELDS))
    hosts = inner.texts("allow") or ()
    for at, host in enumerate(hosts):
        try:
            rules_of(host)
        except InvalidRequest as exc:
            raise inner.wrong(f"allow[{at}]", "a rule such as a host name", host) from exc
    candidates = [
        (fields.path("allow_network"), flag),
        (inner.path("enabled"), inner.flag("enabled")),
        (inner.path("allow"), True if hosts else None),
    ]
    requested = [(path, value) for path, value in candidates if value is not None]
    for path, value in requested[1:]:
        if value != requested[0][1]:
            raise _contradiction(requested[0][0], path)
    more = _network_limits(inner)
    if secrets := inner.texts("secrets"):
        more["secrets"] = list(secrets)
    if inner.flag("inspect"):
        more["inspect"] = True
    if hosts:
        return {"allow": list(hosts), **more}, inner.path("allow")
    if not requested:
        # An empty list allows nothing.
        empty = inner.values.get("allow") is not None
        return "none" if empty else None, fields.path("allow_network")
    if not requested[0][1]:
        return "none", requested[0][0]
    return {"allow": ["*"], **more} if more else "full", requested[0][0]


def _network_limits(network: DefinitionFields) -> dict[str, Any]:
    values = network.values.get("limits")
    if isinstance(values, dict):
        values = {name: _with_unit(name, value) for name, value in values.items()}
    try:
        limits = requested_limits(values)
    except InvalidRequest as exc:
        path = network.path("limits")
        raise InvalidAgent(f"{path}: {exc.message}", hint=exc.hint, field=path) from exc
    return {"limits": dict(limits)} if limits else {}


def _with_unit(name: object, value: object) -> object:
    read = read_limit(str(name), value) if isinstance(value, str) else None
    return value if read is None else read


def _limits(fields: DefinitionFields, limits: DefinitionFields) -> dict[str, Number]:
    """Return the limits that have a public name, including the two that may stand outside
    `limits`.
    """
    requested: dict[str, Any] = {
        name: value
        for name, value in limits.values.items()
        if name in LIMIT_NAMES and value is not None
    }
    for name in ("max_stdout_bytes", "max_stderr_bytes"):
        outer = fields.values.get(name)
        if outer is None:
            continue
        if name in requested and requested[name] != outer:
            raise _contradiction(fields.path(name), limits.path(name))
        _check_limits({name: outer}, fields.path)
        requested[name] = outer
    _check_limits(requested, limits.path)
    return requested


def _check_limits(requested: dict[str, Any], path: Callable[[str], str]) -> None:
    for name, value in requested.items():
        try:
            parse_limits({name: value}, _WIDEST)
        except InvalidRequest as exc:
            message = exc.message.replace(name, path(name), 1)
            raise InvalidAgent(message, hint=exc.hint, field=path(name)) from exc
    try:
        parse_limits(requested, _WIDEST)
    except InvalidRequest as exc:
        raise InvalidAgent(
            f"sandbox.limits: {exc.message}", hint=exc.hint, field="sandbox.limits"
        ) from exc


def _gpus(fields: DefinitionFields, limits: DefinitionFields) -> int | str | tuple[str, ...] | None:
    """Return the GPUs, from the field or from `limits`."""
    requests = []
    for section in (fields, limits):
        value = section.values.get("gpus")
        try:
            request = parse_gpus(value, section.path("gpus"))
        except InvalidRequest as exc:
            raise InvalidAgent(exc.message, hint=exc.hint, field=section.path("gpus")) from exc
        if value is not None:
            requests.append((tuple(value) if isinstance(value, list) else value, request))
    if len(requests) > 1 and requests[0][1] != requests[1][1]:
        raise _contradiction(fields.path("gpus"), limits.path("gpus"))
    return requests[0][0] if requests else None


def _agreed(
    first_path: str, first: float | None, second_path: str, second: Number | None
) -> float | None:
    if first is not None and second is not None and first != second:
        raise _contradiction(first_path, second_path)
    value = second if first is None else first
    return None if value is None else float(value)


def _contradiction(path: str, other: str) -> InvalidAgent:
    return InvalidAgent(
        f"{path} and {other} contradict each other",
        hint="they are the same setting; use one of them",
        field=other,
    )


def _packages(
    fields: DefinitionFields, name: str, form: re.Pattern[str], example: str
) -> tuple[str, ...]:
    packages = []
    for at, text in enumerate(fields.texts(name) or ()):
        # `pandas >= 2` is a common spelling; no other package specification contains a space.
        package = re.sub(r" *([<>=!~]=|[<>,]) *", r"\1", text.strip(" "))
        if not form.match(package) or _ARCHIVE.search(package):
            raise InvalidAgent(
                f"{fields.path(f'{name}[{at}]')} is not a valid package name: {shown(text)}",
                hint=f"write {example}; options, URLs and paths are not supported",
                field=fields.path(name),
            )
        packages.append(package)
    return tuple(packages)
