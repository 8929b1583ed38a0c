"""What of images needs a plugin: who provides it, and the errors of an installation without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

import sandkasten
from sandkasten.errors import InvalidConfiguration, UnsupportedByBackend
from sandkasten.model.images.trust_rules import TrustRule
from sandkasten.plugins.installed import Installed
from sandkasten.plugins.plugin_failure import REMEDY
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.images import installed_parts
from sandkasten_runtime.images.image_plugins import ImagePlugin
from sandkasten_runtime.images.installed_parts import InstalledParts

if TYPE_CHECKING:
    from sandkasten_runtime.images.image_plugins import ImageBuilder, PartContext, SignatureCheck

CONTEXT = cast("PartContext", None)
RULES = [TrustRule(key="/etc/sandkasten/cosign.pub")]
RULE = json.dumps([{"key": "/etc/sandkasten/cosign.pub"}])


def parts(*plugins, problems=()):
    return InstalledParts(Installed(plugins, {}, problems))


def fails(*_):
    raise AssertionError("a part was opened that nothing asked for")


@pytest.fixture
def without_plugins(monkeypatch):
    monkeypatch.setattr(installed_parts, "installed", lambda *_: Installed[ImagePlugin]((), {}, ()))


def test_each_part_may_come_from_another_plugin():
    builder, check = cast("ImageBuilder", object()), cast("SignatureCheck", object())
    both = parts(
        ImagePlugin("one", builder=lambda _: builder, packages=fails),
        ImagePlugin("other", signatures=lambda _: check),
    )
    assert both.builder(CONTEXT) is builder
    assert both.signatures(RULES) is check


def test_two_plugins_of_one_part_are_refused():
    both = parts(*(ImagePlugin(name, fails, fails, fails) for name in ("one", "other")))
    for open_part in (both.builder, both.packages):
        with pytest.raises(InvalidConfiguration, match="one and other"):
            open_part(CONTEXT)
    with pytest.raises(InvalidConfiguration, match="one and other") as caught:
        both.signatures(RULES)
    assert caught.value.details["setting"] == "policy.images.signatures"


def test_missing_builder_and_packages_name_the_extra():
    with pytest.raises(UnsupportedByBackend) as caught:
        parts().builder(CONTEXT)
    assert "[build]" in caught.value.hint
    assert parts().packages(CONTEXT) is None


@pytest.mark.promise("P76")
def test_rules_about_signatures_that_no_plugin_enforces_are_refused():
    other_part = ImagePlugin("one", fails, fails)
    for missing in (parts(), parts(other_part)):
        with pytest.raises(InvalidConfiguration) as caught:
            missing.signatures(RULES)
        assert "[signatures]" in caught.value.hint
        assert caught.value.details["setting"] == "policy.images.signatures"


async def test_a_plugin_that_cannot_be_used_is_not_reported_as_missing():
    for broken in (parts(problems=("it fails",)), parts(ImagePlugin("x"), problems=("it fails",))):
        with pytest.raises(InvalidConfiguration, match="^it fails ") as caught:
            broken.builder(CONTEXT)
        assert caught.value.hint == REMEDY
        with pytest.raises(InvalidConfiguration, match="^it fails ") as caught:
            broken.signatures(RULES)
        assert (caught.value.hint, caught.value.details) == (
            REMEDY, {"setting": "policy.images.signatures"}
        )  # fmt: skip
        # The engine starts, and sandboxes that ask for packages do not.
        packages: Any = broken.packages(CONTEXT)
        with pytest.raises(InvalidConfiguration, match="^it fails ") as caught:
            await packages.provide(None, None, "local", None, "")
        assert caught.value.hint == REMEDY


def test_nothing_enforces_signatures_where_there_are_no_rules():
    assert parts(ImagePlugin("one", fails, fails, fails)).signatures(()) is None


@pytest.mark.promise("P76")
@pytest.mark.parametrize("where", ["flag", "variable", "file"])
async def test_an_engine_does_not_start_with_rules_that_it_cannot_enforce(
    tmp_path, without_plugins, where
):
    flags, environ = {"data_dir": str(tmp_path / "data")}, {}
    if where == "flag":
        flags["policy.images.signatures"] = RULE
    elif where == "variable":
        environ["SANDKASTEN_POLICY_IMAGES_SIGNATURES"] = RULE
    else:
        (tmp_path / "sandkasten.yaml").write_text(f"policy: {{images: {{signatures: {RULE}}}}}")
    with pytest.raises(InvalidConfiguration, match="extra signatures"):
        await open_engine(load(flags, environ, tmp_path))


async def test_images_are_not_built_without_the_plugin(tmp_path, without_plugins):
    images = sandkasten.AsyncImages(data_dir=tmp_path / "data")
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    for building in (
        images.build_debian("d", "bookworm"),
        images.build_known("datascience"),
        images.build(tmp_path, name="d"),
    ):
        with pytest.raises(UnsupportedByBackend) as caught:
            await building
        assert "[build]" in caught.value.hint
    assert await images.list() == []


@pytest.mark.parametrize("kind", ["pip_packages", "npm_packages"])
async def test_packages_are_refused_without_the_plugin(tmp_path, without_plugins, kind):
    packages: dict[str, Any] = {kind: ["left-pad"]}
    with pytest.raises(UnsupportedByBackend) as caught:
        async with sandkasten.AsyncSandbox(
            data_dir=tmp_path / "data", image="no-such-image", **packages
        ):
            pass
    assert "[build]" in caught.value.hint
