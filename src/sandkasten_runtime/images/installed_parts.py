"""The installed plugins of images: which one opens each part, and what to install if none does.

A part that is missing is an error with the command that installs it, at the time it is asked for.
Only signatures are asked for at once: rules that cannot be enforced refuse the start. Two plugins
of one part are refused, because neither may take the place of the other. Where no plugin provides a
part and one cannot be used, the error is what is wrong with that plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration, UnsupportedByBackend
from sandkasten.model.optional_extras import install_command
from sandkasten.plugins.installed import installed, only
from sandkasten.plugins.plugin_failure import REMEDY, opening
from sandkasten_runtime.images.image_plugins import IMAGES_GROUP, ImagePlugin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from sandkasten.model.images.resolved_image import Image
    from sandkasten.model.images.trust_rules import TrustRule
    from sandkasten.model.sandbox.package_sets import Packages, PackageSet
    from sandkasten.plugins.installed import Installed
    from sandkasten.ports import Provisioner, Sites
    from sandkasten_runtime.images.image_plugins import ImageBuilder, PartContext, SignatureCheck

_SIGNATURES = "policy.images.signatures"


def no_builder() -> NoReturn:
    """Raise the error of an installation that builds no images."""
    raise UnsupportedByBackend(
        "builds of images require the extra build, which is not installed",
        hint=install_command("build"),
    )


class InstalledParts:
    def __init__(self, plugins: Installed[ImagePlugin] | None = None) -> None:
        self._installed = installed(IMAGES_GROUP, ImagePlugin) if plugins is None else plugins

    @property
    def problems(self) -> Sequence[str]:
        """Return one sentence for each plugin that cannot be used."""
        return self._installed.problems

    def builder(self, context: PartContext) -> ImageBuilder:
        """Open what builds images. Raise UnsupportedByBackend if nothing does."""
        plugins = [plugin for plugin in self._installed.plugins if plugin.builder is not None]
        if not plugins:
            if self.problems:
                raise InvalidConfiguration(self.problems[0], hint=REMEDY)
            no_builder()
        plugin = only(plugins, "builds of images")
        assert plugin.builder is not None
        with opening(IMAGES_GROUP, plugin.name):
            return plugin.builder(context)

    def packages(self, context: PartContext) -> Provisioner | None:
        """Open what installs packages; return None if nothing does. If a plugin cannot be used,
        sandboxes that ask for packages name it.
        """
        plugins = [plugin for plugin in self._installed.plugins if plugin.packages is not None]
        if not plugins:
            return _BrokenPackages(self.problems[0]) if self.problems else None
        plugin = only(plugins, "packages")
        assert plugin.packages is not None
        with opening(IMAGES_GROUP, plugin.name):
            return plugin.packages(context)

    def signatures(self, rules: Sequence[TrustRule]) -> SignatureCheck | None:
        """Open what enforces the rules; return None if there are none. Raise InvalidConfiguration
        if they cannot be enforced: no image may be used unchecked.
        """
        if not rules:
            return None
        plugins = [plugin for plugin in self._installed.plugins if plugin.signatures is not None]
        if not plugins:
            if self.problems:
                raise InvalidConfiguration(self.problems[0], hint=REMEDY, setting=_SIGNATURES)
            raise InvalidConfiguration(
                f"{_SIGNATURES} requires the extra signatures, which is not installed",
                hint=install_command("signatures"),
                setting=_SIGNATURES,
            )
        plugin = only(plugins, _SIGNATURES, _SIGNATURES)
        assert plugin.signatures is not None
        with opening(IMAGES_GROUP, plugin.name):
            return plugin.signatures(rules)


class _BrokenPackages:
    """Implements `ports.Provisioner` where the plugin of packages cannot be used."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def provide(
        self, packages: Packages, image: Image, backend: str, sites: Sites, tenant: str
    ) -> Sequence[PackageSet]:
        raise InvalidConfiguration(self._problem, hint=REMEDY)

    async def present(self, key: str) -> bool:
        return True
