"""The plugin of the backend docker, and of each named Docker Engine.

Imports nothing of it before it is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.ports.backend_plugins import BackendPlugin
from sandkasten_docker.capabilities import BACKEND, DOCKER, NAMED, docker_capabilities
from sandkasten_docker.docker_options import STATION_HOST, DockerOptions
from sandkasten_runtime.backends.lazy_backend import LazyBackend, with_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.ports import Backend
    from sandkasten.ports.backend_plugins import BackendContext


def _open(context: BackendContext) -> Mapping[str, Backend]:
    section: DockerOptions = context.settings
    named = {
        NAMED + name: docker_engine.options
        for name, docker_engine in section.docker_engines.items()
    }

    def opener(name: str, options: DockerOptions) -> Backend:
        trouble = options.trouble
        if trouble is not None:
            raise BackendUnavailable(trouble.message, hint=trouble.hint, backend=name)
        from sandkasten_docker.backend import DockerBackend

        return DockerBackend(
            context.data_dir,
            options,
            name=name,
            packer=context.packer(),
            pull_limits=context.pull_limits,
            events=context.events,
        )

    return {
        name: LazyBackend(
            name,
            docker_capabilities(options),
            context.data_dir / name.replace("/", "-"),
            with_library(name, "docker", partial(opener, name, options)),
        )
        for name, options in {BACKEND: section, **named}.items()
    }


PLUGIN: Final = BackendPlugin(
    BACKEND, DOCKER, _open, settings=DockerOptions, selecting_keys=(STATION_HOST,)
)
