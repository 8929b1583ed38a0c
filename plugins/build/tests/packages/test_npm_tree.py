"""Resolving npm dependencies against a registry in a dict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkasten.errors import ProvisioningFailed
from sandkasten_build.packages.npm_tree import MAX_PLACED, Machine, resolve

MACHINE = Machine("linux", "x64", "glibc")


class Registry:
    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.asked: list[str] = []

    def add(self, name: str, version: str = "1.0.0", *, tag: str = "latest", **more: Any) -> None:
        about = self.known.setdefault(name, {"dist-tags": {}, "versions": {}})
        about["versions"][version] = {"name": name, "version": version, **more}
        about["dist-tags"][tag] = version

    async def look_up(self, names: Any) -> dict[str, Any]:
        self.asked += sorted(names)
        return {name: self.known.get(name) for name in names}

    def resolve(self, *specs: str) -> dict[str, str]:
        placed = asyncio.run(resolve(specs, MACHINE, self.look_up))
        return {package.path: f"{package.name}@{package.version}" for package in placed}


@pytest.fixture
def registry():
    return Registry()


def test_one_version_is_hoisted_and_another_is_nested(registry):
    registry.add("a", dependencies={"c": "^1.0.0", "b": "1"})
    registry.add("b", dependencies={"c": "^2.0.0"})
    registry.add("c", "1.5.0")
    registry.add("c", "2.1.0", dependencies={"d": "*"})
    registry.add("d")
    assert registry.resolve("a") == {
        "a": "a@1.0.0",
        "c": "c@1.5.0",
        "b": "b@1.0.0",
        "b/node_modules/c": "c@2.1.0",
        "d": "d@1.0.0",
    }
    assert sorted(registry.asked) == ["a", "b", "c", "d"], "each is asked for once"


def test_circular_dependencies_are_resolved(registry):
    registry.add("a", dependencies={"b": "1"})
    registry.add("b", dependencies={"a": "1"})
    assert registry.resolve("a") == {"a": "a@1.0.0", "b": "b@1.0.0"}


def test_the_latest_tag_wins_over_a_newer_version_and_other_tags_are_exact(registry):
    registry.add("a", "2.0.0-rc.1", tag="next")
    registry.add("a", "1.9.0", tag="other")
    registry.add("a", "1.2.0")
    assert registry.resolve("a") == {"a": "a@1.2.0"}
    assert registry.resolve("a@^1.0.0") == {"a": "a@1.2.0"}
    assert registry.resolve("a@^1.5") == {"a": "a@1.9.0"}
    assert registry.resolve("a@next") == {"a": "a@2.0.0-rc.1"}


def test_a_deprecated_version_is_used_only_as_the_last_choice(registry):
    registry.add("a", "1.1.0", deprecated="broken")
    registry.add("a", "1.0.5", tag="old")
    registry.add("a", "2.0.0")
    assert registry.resolve("a@^1.0.0") == {"a": "a@1.0.5"}
    assert registry.resolve("a@^1.1.0") == {"a": "a@1.1.0"}


def test_an_optional_dependency_that_is_missing_or_foreign_is_left_out(registry):
    registry.add("a", optionalDependencies={"win": "1", "lin": "1", "musl": "1", "gone": "1"})
    registry.add("win", os=["win32"])
    registry.add("lin", os=["linux"], cpu=["x64", "arm64"], libc=["glibc"])
    registry.add("musl", os=["!darwin"], libc=["musl"])
    assert registry.resolve("a") == {"a": "a@1.0.0", "lin": "lin@1.0.0"}


def test_a_required_dependency_for_another_platform_is_an_error(registry):
    registry.add("a", dependencies={"mac": "1"})
    registry.add("mac", os=["darwin"])
    with pytest.raises(ProvisioningFailed) as failed:
        registry.resolve("a")
    assert failed.value.message == (
        "npm package mac@1 (for a) cannot be installed: it is not made for linux on x64"
    )
    assert failed.value.details == {"package": "mac"}


def test_a_peer_dependency_is_shared_and_a_second_version_is_an_error(registry):
    registry.add("react", "17.0.0", tag="old")
    registry.add("react", "18.0.0")
    registry.add("ui", peerDependencies={"react": ">=17", "opt": "1"},
                 peerDependenciesMeta={"opt": {"optional": True}})  # fmt: skip
    registry.add("older", peerDependencies={"react": "^17"})
    assert registry.resolve("ui") == {"ui": "ui@1.0.0", "react": "react@18.0.0"}
    with pytest.raises(ProvisioningFailed) as failed:
        registry.resolve("react", "older")
    assert "react 18.0.0 is already installed" in failed.value.message


def test_an_alias_has_its_own_directory(registry):
    registry.add("a", dependencies={"b": "npm:real@^2"})
    registry.add("real", "2.0.0")
    assert registry.resolve("a") == {"a": "a@1.0.0", "b": "real@2.0.0"}


def test_bundled_dependencies_are_not_fetched(registry):
    registry.add("a", dependencies={"b": "1"}, bundleDependencies=["b"])
    assert registry.resolve("a") == {"a": "a@1.0.0"}


@pytest.mark.parametrize(
    "range_", ["git+ssh://git@h/x", "file:/etc", "https://h/x.tgz", "user/repo", "link:../x"]
)
def test_an_address_or_a_path_is_never_followed(registry, range_):
    registry.add("a", dependencies={"b": range_})
    registry.add("b")
    with pytest.raises(ProvisioningFailed, match="URLs and paths are not supported"):
        registry.resolve("a")


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/b/c", ".bin", "@x", "a\0b", "a b", "", "x" * 215]
)
def test_an_invalid_package_name_never_becomes_a_path(registry, name):
    registry.add("a", dependencies={name: "1"})
    registry.add(name)
    with pytest.raises(ProvisioningFailed, match="not a valid package name"):
        registry.resolve("a")


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"versions": []}, {"versions": {"1.0.0": None}, "dist-tags": {"latest": "1.0.0"}},
     {"versions": {"1.0.0": {"version": "2.0.0"}}, "dist-tags": {"latest": "1.0.0"}},
     {"versions": {}, "dist-tags": {"latest": 5}}],
)  # fmt: skip
def test_an_invalid_registry_answer_is_an_error_that_names_the_package(registry, answer):
    registry.known["a"] = answer
    with pytest.raises(ProvisioningFailed) as failed:
        registry.resolve("a")
    assert failed.value.message.startswith("npm package a@latest cannot be installed: ")


def test_two_versions_of_a_requested_package_are_an_error(registry):
    registry.add("a", "1.0.0")
    registry.add("a", "2.0.0")
    with pytest.raises(ProvisioningFailed, match="is required in the same directory"):
        registry.resolve("a@1", "a@2")


def test_an_endless_dependency_tree_is_cut_off(registry):
    class Endless(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            next_ = {f"{name}{letter}": "1" for letter in "abcdefghij"}
            manifest = {"name": name, "version": "1.0.0", "dependencies": next_}
            return {"versions": {"1.0.0": manifest}, "dist-tags": {"latest": "1.0.0"}}

    registry.known = Endless()
    with pytest.raises(ProvisioningFailed, match=f"more than {MAX_PLACED} packages"):
        registry.resolve("a")


def test_programs_with_invalid_names_are_left_out(registry):
    registry.add("@s/a", bin="./cli.js")
    registry.add("b", bin={"ok": "x.js", "../../evil": "x.js", "y": 5, ".": "z"})
    a, b = asyncio.run(resolve(("@s/a", "b"), MACHINE, registry.look_up))
    assert (a.programs, b.programs) == ({"a": "./cli.js"}, {"ok": "x.js"})
