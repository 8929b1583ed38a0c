"""The plugin `build`: builds of images, packages of PyPI and npm, and signatures of images.

Imports each part when it is opened: most processes only read the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten_runtime.images.image_plugins import ImagePlugin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.images.trust_rules import TrustRule
    from sandkasten.ports import Provisioner as PackagePort
    from sandkasten_runtime.images.image_plugins import ImageBuilder, PartContext, SignatureCheck


def _builder(context: PartContext) -> ImageBuilder:
    from sandkasten_build.builder.image_builder import Builder

    return Builder(context.store, context.read_yaml)


def _packages(context: PartContext) -> PackagePort:
    from sandkasten_build.packages.package_rules import PackageRules
    from sandkasten_build.packages.provisioner import Provisioner

    rules = context.settings.of(PackageRules)
    return Provisioner(context.data_dir / "packages", rules, context.environ, context.events)


def _signatures(rules: Sequence[TrustRule]) -> SignatureCheck:
    from sandkasten_build.signatures.image_trust import ImageTrust

    return ImageTrust(rules)


PLUGIN: Final = ImagePlugin("build", _builder, _packages, _signatures)
