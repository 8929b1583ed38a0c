"""The OCI form of the seccomp filters equals the compiled one."""

from __future__ import annotations

import random
from errno import ENOSYS, EPERM
from typing import Any

import pytest

from sandkasten_runtime.linux.confinement import seccomp_rules
from sandkasten_runtime.linux.confinement.seccomp_oci import all_but, profile


def answer(name: str, *arguments: int) -> str | int:
    """Return a runtime's decision on the profile: the matching rule, else the default."""
    made: dict[str, Any] = dict(profile("x86_64"))
    found = {_outcome(rule) for rule in made["syscalls"] if _matches(rule, name, arguments)}
    assert len(found) <= 1, f"{name}{arguments} has two answers: {found}"
    default: str | int = made["defaultErrnoRet"]
    return found.pop() if found else default


def _outcome(rule) -> str | int:
    return rule["errnoRet"] if rule["action"] == "SCMP_ACT_ERRNO" else "allow"


def _matches(rule, name, arguments) -> bool:
    if name not in rule["names"]:
        return False
    for one in rule.get("args", ()):
        given = arguments[one["index"]]
        match one["op"]:
            case "SCMP_CMP_EQ":
                ok = given == one["value"]
            case "SCMP_CMP_GE":
                ok = given >= one["value"]
            case "SCMP_CMP_MASKED_EQ":
                ok = given & one["value"] == one["valueTwo"]
        if not ok:
            return False
    return True


@pytest.mark.promise("P02")
def test_every_listed_call_has_the_action_of_its_list():
    by_argument = {"clone", "ioctl", "personality", "socket", "socketpair"}
    for name in seccomp_rules.ALLOWED - by_argument:
        assert answer(name) == "allow"
    for name in seccomp_rules.REFUSED - by_argument:
        assert answer(name) == EPERM
    assert answer("clone3") == ENOSYS
    assert answer("a_call_of_tomorrow") == ENOSYS


@pytest.mark.promise("P02")
def test_calls_that_fail_with_enosys_are_listed_for_engines_without_a_default_errno():
    rules: Any = profile("x86_64")["syscalls"]
    assert [_outcome(r) for r in rules if _matches(r, "clone3", ())] == [ENOSYS]
    assert {_outcome(r) for r in rules if _matches(r, "personality", (0x0040000,))} == {ENOSYS}


def test_clone_can_create_threads_but_no_namespace():
    assert answer("clone", 0x003D_0F00) == "allow"
    for flag in seccomp_rules.CLONE_NEW_FLAGS:
        assert answer("clone", 17 | flag) == EPERM


def test_terminal_injection_is_refused_whatever_the_high_bits_are():
    for request in seccomp_rules.REFUSED_IOCTLS:
        assert answer("ioctl", 0, request) == EPERM
        assert answer("ioctl", 0, request | 0xDEAD_0000_0000) == EPERM
    for request in (0x5401, 0x5413, 0x541B, 0x5411, 0, 0xFFFF_FFFF):
        assert answer("ioctl", 0, request) == "allow"


def test_socket_families_are_those_of_the_list():
    for family in (*range(60), 1 << 20):
        wanted = "allow" if family in seccomp_rules.ALLOWED_FAMILIES else EPERM
        assert answer("socket", family) == wanted
        assert answer("socketpair", family) == wanted


def test_personality_is_allowed_for_known_values_only():
    assert answer("personality", 0xFFFF_FFFF) == "allow"
    assert answer("personality", 0x0040_0000) == ENOSYS


@pytest.mark.parametrize("values", [(), (0,), (5,), (0x5412, 0x541C), (1, 2, 3, 0xFFFF)])
def test_masks_match_all_but_the_values(values):
    masks = all_but(values, bits=16)
    pick = random.Random(7)
    for number in [*values, *(v ^ 1 for v in values), *(pick.getrandbits(16) for _ in range(500))]:
        matched = sum(number & mask == value for mask, value in masks)
        # Exactly one: masks that overlapped would only make the filter longer.
        assert matched == (0 if number in values else 1)
