"""Options and arguments that several commands share.

The flags that describe a sandbox are one table: a new option is one line of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown
from sandkasten_server.cli.exit_status import UsageError
from sandkasten_server.cli.quantities import limit, network_limit, seconds

if TYPE_CHECKING:
    from sandkasten_server.cli.state import State

F = TypeVar("F", bound=Callable[..., Any])

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Id = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of a sandbox, or a unique prefix.",
    ),
]
OptionalId = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="A sandbox; default: all."),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        "-u",
        metavar="USER[:GROUP]",
        help="Act as this user of the image; requires profile dev.",
    ),
]
Environment = Annotated[
    list[str],
    typer.Option("--env", "-e", metavar="K=V", help="An environment variable; repeatable."),
]
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="B",
        help="Name of a backend; sandkasten doctor --all lists all.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="TIME", parser=seconds, help="Kill it after 90 (seconds), 5m, 1h."
    ),
]

Most = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000)]


def state_of(context: typer.Context, *, json: bool = False, backend: str | None = None) -> State:
    """Return the state; a `backend` after the command overrides the one before it."""
    state = cast("State", context.obj)
    state.json = json
    state.backend = backend or state.backend
    return state


def pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Parse K=V words; the last of a name wins. UsageError for a word without `=`."""
    parsed: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} must be NAME=VALUE, got {word[:80]!r}", hint="add the =")
        parsed[name] = value
    return parsed


def numbers(words: Sequence[str]) -> dict[str, float]:
    """Parse the NAME=N words of --limit."""
    return {name: limit(name, text) for name, text in pairs(words, "--limit").items()}


def network_of(
    mode: str | None,
    allow: Sequence[str],
    deny: Sequence[str],
    limits: Sequence[str],
    *,
    dry_run: bool,
    secrets: Sequence[str] = (),
    inspect: bool = False,
) -> str | dict[str, Any] | None:
    """Return the network that the flags of a sandbox's network stand for."""
    if not (allow or deny or limits or dry_run or secrets or inspect):
        return mode
    if mode == "full":
        if allow:
            raise UsageError(
                "--network full excludes --allow", hint="use --allow alone for single hosts"
            )
        allow = ("*",)
    elif mode == "none":
        raise UsageError(
            "--network none excludes the other flags of a network",
            hint="leave them out, or use --allow in place of --network none",
        )
    elif mode is not None:
        raise UsageError(f"--network {shown(mode)} is not valid", hint="use none or full")
    if not allow and (deny or limits) and not dry_run:
        raise UsageError(
            f"{'--deny' if deny else '--network-limit'} requires --allow or --network full",
            hint="name the rules too, also if they stay as they are: --allow example.com",
        )
    network: dict[str, Any] = {"allow": list(allow)}
    if deny:
        network["deny"] = list(deny)
    if limits:
        named = pairs(limits, "--network-limit")
        network["limits"] = {name: network_limit(name, text) for name, text in named.items()}
    if secrets:
        network["secrets"] = list(secrets)
    if inspect:
        network["inspect"] = True
    if dry_run:
        network["dry_run"] = True
    return network


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag of a sandbox, and the keyword argument of the client it stands for."""

    keyword: str
    declaration: str
    help: str
    on: frozenset[str]
    """The commands that have it."""
    metavar: str | None = None
    short: str | None = None
    kind: Any = str | None
    read: Callable[[Any], Any] = lambda value: value

    @property
    def name(self) -> str:
        return self.declaration.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> inspect.Parameter:
        names = [self.declaration, *([self.short] if self.short else [])]
        option = typer.Option(*names, metavar=self.metavar, help=self.help or None)
        default: Any = [] if self.kind == list[str] else False if self.kind is bool else None
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[self.kind, option],
        )


_CREATE: Final = frozenset({"create"})
_RUN: Final = frozenset({"create", "run"})
_ALL: Final = frozenset({"create", "run", "shell"})
_WORDS: Final = list[str]

_FLAGS: Final = (
    _Flag("image", "--image", "The image.", _ALL, "I", "-i"),
    _Flag(
        "ttl_seconds",
        "--ttl",
        "Lifetime without activity: 90 (seconds), 30m, 12h.",
        _CREATE,
        "TIME",
        read=lambda text: None if text is None else seconds(text),
    ),
    _Flag(
        "env",
        "--env",
        "An environment variable; repeatable.",
        _RUN,
        "K=V",
        "-e",
        _WORDS,
        lambda words: pairs(words, "--env"),
    ),
    _Flag(
        "labels",
        "--label",
        "A label; repeatable.",
        _CREATE,
        "K=V",
        "-l",
        _WORDS,
        lambda words: pairs(words, "--label"),
    ),
    _Flag(
        "limits",
        "--limit",
        "A limit, e.g. mem_limit_mb=256 or mem_limit_mb=2G; repeatable.",
        _RUN,
        "NAME=N",
        kind=_WORDS,
        read=numbers,
    ),
    _Flag(
        "profile",
        "--profile",
        "hardened (the default) or dev.",
        _CREATE,
        "P",
    ),
    _Flag("hostname", "--hostname", "Host name of the sandbox.", _ALL, "H"),
    _Flag("network", "--network", "none (the default) or full.", _ALL, "N"),
    _Flag(
        "network_allow",
        "--allow",
        "A destination it may reach, e.g. example.com, *.example.com:443, preset:pypi; repeatable.",
        _ALL,
        "RULE",
        kind=_WORDS,
    ),
    _Flag(
        "network_limits",
        "--network-limit",
        "A limit of its network, e.g. connections=16, bytes_in=1G; repeatable.",
        _ALL,
        "NAME=N",
        kind=_WORDS,
    ),
    _Flag(
        "network_dry_run",
        "--dry-run",
        "Let it reach every public address, and log what the rules would refuse.",
        _ALL,
        kind=bool,
    ),
    _Flag(
        "network_deny",
        "--deny",
        "A destination it may not reach, although --allow or --network full names it; repeatable.",
        _ALL,
        "RULE",
        kind=_WORDS,
    ),
    _Flag(
        "network_secrets",
        "--secret",
        "A stored secret that is inserted into its requests; repeatable.",
        _ALL,
        "NAME",
        kind=_WORDS,
    ),
    _Flag(
        "network_inspect",
        "--inspect",
        "Inspect all TLS, for rules such as 'GET example.com/path*'.",
        _ALL,
        kind=bool,
    ),
    _Flag(
        "isolation",
        "--isolation",
        "standard, gvisor or strongest.",
        _RUN,
        "I",
    ),
    _Flag(
        "session_key",
        "--session-key",
        "Use the living sandbox with this key, if any.",
        _CREATE,
        "K",
    ),
    _Flag(
        "workspace",
        "--workspace",
        "A named workspace; created on first use.",
        _ALL,
        "NAME",
    ),
    _Flag(
        "workspace_mode",
        "--shared",
        "Share the workspace with other --shared sandboxes.",
        _ALL,
        kind=bool,
        read=lambda shared: "shared" if shared else None,
    ),
    _Flag(
        "snapshot",
        "--snapshot",
        "Start with the files of a snapshot: its id or name.",
        _CREATE,
        "SNAPSHOT",
    ),
    _Flag(
        "mounts",
        "--mount",
        "One of the operator's mounts; repeatable.",
        _RUN,
        "NAME[/DIR]",
        kind=_WORDS,
    ),
    _Flag(
        "gpus",
        "--gpus",
        "GPUs: a number, all, or device ids separated by commas.",
        _ALL,
        "N",
        read=lambda text: text.split(",") if text is not None and "," in text else text,
    ),
    _Flag(
        "pip_packages",
        "--pip",
        "A Python package to install; repeatable.",
        _ALL,
        "PACKAGE",
        kind=_WORDS,
    ),
    _Flag(
        "npm_packages",
        "--npm",
        "An npm package to install; repeatable.",
        _ALL,
        "PACKAGE",
        kind=_WORDS,
    ),
)

KEYWORDS: Final = {flag.keyword: flag.declaration for flag in _FLAGS}
"""The option for each keyword argument of the client."""


def sandbox_flags(command: str) -> Callable[[F], F]:
    """Give a command the flags of a sandbox in place of its parameter `options`.

    The function receives them as the client's keyword arguments.
    """
    flags = [flag for flag in _FLAGS if command in flag.on]

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            options = {flag.keyword: flag.read(values.pop(flag.name)) for flag in flags}
            options["network"] = network_of(
                options["network"],
                options.pop("network_allow"),
                options.pop("network_deny"),
                options.pop("network_limits"),
                dry_run=options.pop("network_dry_run"),
                secrets=options.pop("network_secrets"),
                inspect=options.pop("network_inspect"),
            )
            return function(options=options, **values)

        shown: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            if parameter.name == "options":
                shown += [flag.parameter for flag in flags]
            else:
                shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        # typer would look for `options` there.
        call.__annotations__ = {}
        return cast("F", call)

    return decorate
