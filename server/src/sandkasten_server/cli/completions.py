"""Words that the shell completes: ids, names and choices. Errors are ignored there.

One table lists what completes a value, by the option, or by what help calls the argument, of all
commands or of one. The declarations of the commands do not repeat it.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

import typer

from sandkasten.errors import SandkastenError
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.language_runtimes import IMAGE_ALIASES, RUNTIMES
from sandkasten.plugins.plugin_failure import is_its_own
from sandkasten_server.cli.command_plugins import command_plugins, loaded, unusable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from sandkasten_server.cli.state import State

    # Returns all words for a place to ask and the command line so far.
    Words = Callable[[State, typer.Context], Awaitable[Iterable[str]]]

CORE_BACKENDS: Final = ("local", "oci", "gvisor")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_NETWORKS: Final = ("none", "full")


def add_to(app: typer.Typer, path: str = "") -> None:
    """Let the shell complete the values of these commands, by the table."""
    for command in app.registered_commands:
        for parameter in parameters(command.callback):
            parameter.info.autocompletion = completion_of(f"{path} {command.name}", parameter)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_to(group.typer_instance, f"{path} {group.name}".strip())
    for parameter in parameters(getattr(app.registered_callback, "callback", None)):
        parameter.info.autocompletion = completion_of(path, parameter)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option or argument that a command declares."""

    name: str
    """The long name of an option, or what help calls an argument, without brackets and dots."""
    info: typer.models.ParameterInfo


def parameters(function: Callable[..., Any] | None) -> Iterator[Parameter]:
    """Yield the options and arguments of a command."""
    if function is None:
        return
    declared = inspect.signature(function, eval_str=True).parameters
    if not hasattr(function, "__signature__"):
        # typer then finds these values, and does not evaluate the annotations again.
        function.__annotations__ = {
            name: parameter.annotation for name, parameter in declared.items()
        }
    for name, parameter in declared.items():
        if get_origin(parameter.annotation) is Annotated:
            for info in get_args(parameter.annotation)[1:]:
                if isinstance(info, typer.models.ParameterInfo):
                    yield Parameter(_shown_name(name, info), info)


def _shown_name(name: str, info: typer.models.ParameterInfo) -> str:
    if isinstance(info, typer.models.ArgumentInfo):
        return (info.metavar or name.upper()).replace("...", "").strip("[]")
    # In an annotation, the first declaration is where the default would be.
    names = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    return next(
        (spelling for spelling in names if spelling.startswith("--")), f"--{name.replace('_', '-')}"
    )


def completion_of(
    command: str, parameter: Parameter
) -> Callable[[typer.Context, str], list[str]] | None:
    """Return what completes a value of this parameter; None if any string is possible."""
    command = command.strip()
    for key in (f"{command} {parameter.name}", f"{command.partition(' ')[0]} {parameter.name}"):
        words = _words(key)
        if words is not None:
            return _completion(words)
    words = _words(parameter.name)
    return None if words is None else _completion(words)


def keys() -> set[str]:
    """Return the options and arguments that are completed, of the core and of plugins."""
    return {*TABLE, *command_plugins().completions}


def _words(key: str) -> Words | None:
    """Return the completion of the core or else of a plugin."""
    target = command_plugins().completions.get(key)
    if key in TABLE or target is None:
        return TABLE.get(key)

    async def words(state: State, ctx: typer.Context) -> Iterable[str]:
        complete = loaded(target)
        try:
            return tuple(await complete(state, ctx))
        except BaseException as exc:
            if not is_its_own(exc):
                raise
            raise unusable(target, "called", exc) from exc

    return words


def _completion(words: Words) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        async def listed() -> Iterable[str]:
            from sandkasten.client.server.server_pool import aclose

            try:
                return await words(_state(ctx), ctx)
            finally:
                await aclose()

        with suppress(SandkastenError, OSError):
            return sorted({word for word in asyncio.run(listed()) if word.startswith(incomplete)})
        return []

    return complete


def _state(ctx: typer.Context) -> State:
    """Return the place that the options before the command name."""
    from sandkasten_server.cli.state import State

    state, before = State(), ctx.find_root().params
    state.data_dir, state.url = before.get("data_dir"), before.get("url")
    state.api_key, state.embedded = before.get("api_key"), bool(before.get("embedded"))
    return state


def _choice(*words: str) -> Words:
    return _computed(lambda: words)


def _computed(words: Callable[[], Iterable[str]]) -> Words:
    """Return the completion by words of the model, which is imported only then."""

    async def compute(state: State, ctx: typer.Context) -> Iterable[str]:
        return words()

    return compute


async def _sandboxes(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.sandbox import AsyncSandbox

    return [info.id for info in await AsyncSandbox.list(**state.where)]


async def _sandbox_paths(state: State, ctx: typer.Context) -> Iterable[str]:
    return [f"{name}:" for name in await _sandboxes(state, ctx)]


async def _images(state: State, ctx: typer.Context) -> Iterable[str]:
    """Return the images of the store, without the default tag, and the usual aliases."""
    return {*await _stored_images(state, ctx), *IMAGE_ALIASES}


async def _stored_images(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.images import AsyncImages

    stored = await AsyncImages(**state.where).list()
    return {name.removesuffix(":latest") for image in stored for name in image.names}


async def _workspaces(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.workspaces import AsyncWorkspaces

    return [workspace.name for workspace in await AsyncWorkspaces(**state.where).list()]


async def _snapshots(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.snapshots import AsyncSnapshots

    snapshots = await AsyncSnapshots(**state.where).list()
    return {name for snapshot in snapshots for name in (snapshot.id, snapshot.name) if name}


async def _secrets(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.server.server_pool import connect

    return [secret.name for secret in await (await connect(state.place)).secrets.list()]


async def _files(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        return [row.key for row in await books.files.list("")]


async def _keys(state: State, ctx: typer.Context) -> Iterable[str]:
    from sandkasten.client.server.admin_transport import books_of

    async with books_of(state.place) as books:
        return [row.id for row in await books.keys.list(None)]


async def _commands(state: State, ctx: typer.Context) -> Iterable[str]:
    """Return the commands of the sandbox that the line names."""
    from sandkasten.client.sandbox import AsyncSandbox
    from sandkasten_server.cli.sandbox_names import resolve

    box = await AsyncSandbox.attach(await resolve(state, str(ctx.params.get("id"))), **state.where)
    return [entry.exec_id for entry in await box.execs() if entry.kind == "command"]


def _backends() -> Iterable[str]:
    """Return the backends of the core, and those that installed distributions bring."""
    from sandkasten.plugins.entry_points import entry_points
    from sandkasten.ports.backend_plugins import BACKENDS_GROUP

    return (*CORE_BACKENDS, *(entry.name for entry in entry_points().of(BACKENDS_GROUP)))


def _isolations() -> Iterable[str]:
    from sandkasten.model.sandbox.isolation_levels import ISOLATIONS

    return ISOLATIONS


def _profiles() -> Iterable[str]:
    from sandkasten.model.sandbox.cell_spec import Profile

    return get_args(Profile)


def _languages() -> Iterable[str]:
    from sandkasten.model.commands.code_values import KNOWN_LANGUAGES

    return KNOWN_LANGUAGES


def _limits() -> Iterable[str]:
    from sandkasten.model.sandbox.limit_names import LIMIT_NAMES

    return [f"{name}=" for name in LIMIT_NAMES]


def _network_limits() -> Iterable[str]:
    from sandkasten.model.sandbox.network_limits import LIMIT_NAMES

    return [f"{name}=" for name in LIMIT_NAMES]


def _presets() -> Iterable[str]:
    from sandkasten.model.sandbox.network_rules import PRESETS

    return [f"preset:{name}" for name in PRESETS]


def _scopes() -> Iterable[str]:
    from sandkasten.model.access.tenancy import SCOPES

    return SCOPES


def _record_kinds() -> Iterable[str]:
    from sandkasten.model.audit_records import KINDS

    return KINDS


def _signals() -> Iterable[str]:
    import signal

    return [member.name.removeprefix("SIG") for member in signal.Signals]


TABLE: Final[Mapping[str, Words]] = {
    "--allow": _computed(_presets),
    "--backend": _computed(_backends),
    "--default-image": _images,
    "--deny": _computed(_presets),
    "--image": _images,
    "--isolation": _computed(_isolations),
    "--language": _computed(_languages),
    "--log-level": _choice(*_LOG_LEVELS),
    "--network": _choice(*_NETWORKS),
    "--network-limit": _computed(_network_limits),
    "--profile": _computed(_profiles),
    "--runtime": _choice(*RUNTIMES),
    "--scope": _computed(_scopes),
    "--secret": _secrets,
    "--signal": _computed(_signals),
    "--snapshot": _snapshots,
    "--workspace": _workspaces,
    "EXEC": _commands,
    "ID": _sandboxes,
    "ID:PATH": _sandbox_paths,
    "KEY": _files,
    "audit --key": _keys,
    "audit --kind": _computed(_record_kinds),
    "audit --session": _sandboxes,
    "cp DST": _sandbox_paths,
    "cp SRC": _sandbox_paths,
    "create --limit": _computed(_limits),
    "files PREFIX": _files,
    "image NAME": _stored_images,
    "key ID": _keys,
    "replay --cast": _commands,
    "run --limit": _computed(_limits),
    "secret NAME": _secrets,
    "snapshot SNAPSHOT": _snapshots,
    "workspace NAME": _workspaces,
    "workspace SOURCE": _workspaces,
}
"""The completion of a value by its option or argument, of all commands, of one, or of a group.
Plugins have their own tables."""
