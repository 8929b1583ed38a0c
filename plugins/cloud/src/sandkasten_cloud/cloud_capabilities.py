"""The capabilities of machines of every provider. Imports nothing of a provider."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sandkasten.model.backends.capabilities import Capabilities, Closed

if TYPE_CHECKING:
    from sandkasten.model.backends.backend_features import BackendFeatures
    from sandkasten_cloud.provider_options import ProviderOptions

# For everything of a create but the start of the machine.
_ANSWERS_S: Final = 60.0


def machine_capabilities(features: BackendFeatures) -> Capabilities:
    return Capabilities(
        strength=1,
        external=True,
        platform="provider",
        own_images=True,
        # The provider fetches images itself.
        pulls="always",
        remote=True,
        refuses_networks=True,
        fixed_network=True,
        features=features,
    )


def configured(options: ProviderOptions, name: str, can: Capabilities) -> Capabilities:
    """Return the capabilities with these settings.

    A provider is closed until the operator enables it: every key that may create a sandbox could
    otherwise make machines that cost money. Without a setting that every request to the provider
    needs, it is as closed.
    """
    closed = None
    missing = options.missing()
    if not options.enabled:
        variable = f"SANDKASTEN_{name.upper()}_ENABLED"
        closed = Closed(
            f"backend {name} is not enabled",
            f"the operator sets backends.{name}.enabled: true, or {variable}=true",
        )
    elif missing is not None:
        closed = Closed(missing.reason, missing.remedy)
    timeout_s = 2 * options.start_s + _ANSWERS_S
    return replace(can, closed=closed, create_timeout_s=timeout_s)
