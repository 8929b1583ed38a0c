"""The import path of the adapters for agent frameworks, `sandkasten.integrations.NAME`.

The modules are in another distribution. Without it, importing one of them raises ImportError with
the command that installs it.
"""

from __future__ import annotations

from importlib.util import find_spec

_DISTRIBUTION = "sandkasten_integrations"
_spec = find_spec(_DISTRIBUTION)
if _spec is None:
    from sandkasten.model.optional_extras import install_command

    raise ImportError(
        "adapters for agent frameworks are not installed; install one with, for example: "
        + install_command("langchain"),
        name=_DISTRIBUTION,
    )
__path__ = [*(_spec.submodule_search_locations or ())]
