"""Words that the shell completes: ids, names and choices. Errors are ignored there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    Complete = Callable[[str], list[str]]

BACKENDS: Final = (
    "local", "oci", "gvisor", "docker", "kubernetes", "dagger", "fly", "e2b", "modal",
)  # fmt: skip
ALIASES: Final = ("base", "bash", "host", "linux", "node", "python", "shell")


def sandboxes(incomplete: str) -> list[str]:
    from sandkasten.client.sandbox import AsyncSandbox

    async def found() -> Iterable[str]:
        return [info.id for info in await AsyncSandbox.list(**_where())]

    return _complete(found(), incomplete)


def images(incomplete: str) -> list[str]:
    """Return the images of the store, without the default tag, and the usual aliases."""
    from sandkasten.client.images import AsyncImages

    async def found() -> Iterable[str]:
        stored = await AsyncImages(**_where()).list()
        names = {name.removesuffix(":latest") for image in stored for name in image.names}
        return names.union(ALIASES)

    return _complete(found(), incomplete)


def workspaces(incomplete: str) -> list[str]:
    from sandkasten.client.workspaces import AsyncWorkspaces

    async def found() -> Iterable[str]:
        return [one.name for one in await AsyncWorkspaces(**_where()).list()]

    return _complete(found(), incomplete)


def isolations(incomplete: str) -> list[str]:
    from sandkasten.model.sandbox.isolation_levels import ISOLATIONS

    return _among(ISOLATIONS, incomplete)


def backends(incomplete: str) -> list[str]:
    return _among(BACKENDS, incomplete)


def profiles(incomplete: str) -> list[str]:
    from typing import get_args

    from sandkasten.model.sandbox.cell_spec import Profile

    return _among(get_args(Profile), incomplete)


def runtimes(incomplete: str) -> list[str]:
    return _among(("python", "node", "bash", "sh"), incomplete)


def _where() -> dict[str, Any]:
    from sandkasten.cli.state import State

    return State().where


def _complete(found: Coroutine[Any, Any, Iterable[str]], incomplete: str) -> list[str]:
    import asyncio

    try:
        return _among(asyncio.run(found), incomplete)
    except (SandkastenError, OSError):
        return []


def _among(known: Iterable[str], incomplete: str) -> list[str]:
    return sorted(one for one in known if one.startswith(incomplete))
