"""The system-call lists in the form an OCI runtime takes: `linux.seccomp` of a config.json. Pure.

A runtime loads one filter, an allow-list, which cannot express "this call, but not with that
argument". So what `seccomp` refuses with a second filter is inverted here: the remaining arguments
are covered by masks, and each mask is a rule that allows.
"""

from __future__ import annotations

from errno import ENOSYS, EPERM
from typing import TYPE_CHECKING

from sandkasten_runtime.linux.confinement import seccomp_rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandkasten_runtime.linux.confinement.seccomp_bpf import Arch

_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
_EQUAL, _AT_LEAST, _MASKED = "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_MASKED_EQ"
_ALLOWED = {"action": _ALLOW}
_REFUSE = {"action": _ERRNO, "errnoRet": EPERM}
_LOW_32 = 0xFFFF_FFFF
_NAMES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_UNKNOWN = {"action": _ERRNO, "errnoRet": ENOSYS}
# Programs try these first and do without them if the kernel does not know them. Container engines
# of before 2023 take no default errno and answer EPERM, at which glibc would create no thread.
_TRIED_FIRST = ("clone3",)
_BY_ARGUMENT = frozenset({"clone", "ioctl", "personality", "socket", "socketpair"})


def profile(arch: Arch) -> dict[str, object]:
    """Return the profile: unlisted calls answer ENOSYS, refused ones EPERM, as in the compiled
    filters.
    """
    new_namespaces = 0
    for flag in seccomp_rules.CLONE_NEW_FLAGS:
        new_namespaces |= flag
    rules: list[dict[str, object]] = [
        {"names": sorted(seccomp_rules.ALLOWED - _BY_ARGUMENT), "action": _ALLOW},
        {"names": sorted(seccomp_rules.REFUSED - _BY_ARGUMENT), **_REFUSE},
        {"names": list(_TRIED_FIRST), **_UNKNOWN},
        _rule("clone", _ALLOWED, 0, _MASKED, new_namespaces, 0),
    ]
    rules += [
        _rule("clone", _REFUSE, 0, _MASKED, flag, flag) for flag in seccomp_rules.CLONE_NEW_FLAGS
    ]
    rules += [
        _rule("ioctl", _ALLOWED, 1, _MASKED, mask, value)
        for mask, value in all_but(seccomp_rules.REFUSED_IOCTLS, bits=32)
    ]
    rules += [_rule("ioctl", _REFUSE, 1, _MASKED, _LOW_32, r) for r in seccomp_rules.REFUSED_IOCTLS]
    rules += [
        _rule("personality", _ALLOWED, 0, _EQUAL, value)
        for value in seccomp_rules.ALLOWED_PERSONALITIES
    ]
    rules += [
        _rule("personality", _UNKNOWN, 0, _MASKED, mask, value)
        for mask, value in all_but(seccomp_rules.ALLOWED_PERSONALITIES, bits=32)
    ]
    for name in ("socket", "socketpair"):
        for family in range(seccomp_rules.FAMILY_END):
            answer = _ALLOWED if family in seccomp_rules.ALLOWED_FAMILIES else _REFUSE
            rules.append(_rule(name, answer, 0, _EQUAL, family))
        rules.append(_rule(name, _REFUSE, 0, _AT_LEAST, seccomp_rules.FAMILY_END))
    return {
        "defaultAction": _ERRNO,
        "defaultErrnoRet": ENOSYS,
        "architectures": [_NAMES[arch]],
        "syscalls": rules,
    }


def _rule(
    name: str,
    answer: Mapping[str, object],
    index: int,
    operator: str,
    value: int,
    wanted: int | None = None,
) -> dict[str, object]:
    argument: dict[str, object] = {"index": index, "value": value, "op": operator}
    if wanted is not None:
        argument["valueTwo"] = wanted
    return {"names": [name], "args": [argument], **answer}


def all_but(values: Iterable[int], *, bits: int) -> list[tuple[int, int]]:
    """Return (mask, value) pairs that together match every number of `bits` bits except `values`.

    Walks down from the highest bit: where a number leaves the path of every excluded one, the bits
    so far are a mask.
    """
    pairs: list[tuple[int, int]] = []
    paths = {0}
    excluded = set(values)
    for bit in reversed(range(bits)):
        mask = ((1 << bits) - 1) >> bit << bit
        next_paths = {value & mask for value in excluded}
        pairs += [
            (mask, step)
            for path in sorted(paths)
            for step in (path, path | 1 << bit)
            if step not in next_paths
        ]
        paths = next_paths
    return pairs
