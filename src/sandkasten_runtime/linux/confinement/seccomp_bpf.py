"""Compile the system-call lists to BPF with libseccomp, for x86_64 and aarch64.

There are two filters, because libseccomp cannot express "this call, but not with that argument" in
an allow-list: the first lists the calls, the second refuses certain arguments. The kernel takes the
stricter answer. Compiled once per architecture and list, then read from a file.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from errno import ENOSYS, EPERM
from functools import cache
from typing import TYPE_CHECKING, Literal

from sandkasten.errors import BackendUnavailable
from sandkasten_runtime.linux.confinement import seccomp_rules

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

Arch = Literal["x86_64", "aarch64"]
# Increased whenever the construction of filters changes, so that no stale file is used.
_REVISION = 1
_LOW_32 = 0xFFFF_FFFF


def machine() -> Arch:
    name = platform.machine()
    if name in ("x86_64", "aarch64"):
        return name  # type: ignore[return-value]  # narrowed by the test above
    raise BackendUnavailable(
        f"no system-call filter is known for {name}", hint="use x86_64 or aarch64"
    )


def _library() -> ModuleType:
    try:
        import pyseccomp
    except ModuleNotFoundError as exc:
        # A client of a daemon elsewhere may be installed without it.
        raise BackendUnavailable(
            "sandboxes on this machine require the library pyseccomp",
            hint="pip install pyseccomp, or name a daemon (url=, SANDKASTEN_URL)",
        ) from exc
    except (ImportError, RuntimeError, OSError) as exc:
        raise BackendUnavailable(
            f"libseccomp cannot be used: {exc}", hint="apt-get install libseccomp2"
        ) from exc
    module: ModuleType = pyseccomp
    return module


def available() -> None:
    """Raise BackendUnavailable if libseccomp is missing."""
    _library()


def _filter(lib: ModuleType, default: object, arch: Arch) -> object:
    seccomp = lib.SyscallFilter(defaction=default)
    wanted = lib.Arch.X86_64 if arch == "x86_64" else lib.Arch.AARCH64
    if platform.machine() != arch:
        seccomp.add_arch(wanted)
        seccomp.remove_arch(lib.Arch.NATIVE)
    return seccomp


def compile_filters(arch: Arch) -> tuple[bytes, bytes]:
    """Return (calls, arguments) as the kernel's struct sock_filter array."""
    lib = _library()
    return _export(_calls(lib, arch)), _export(_arguments(lib, arch))


def _known(lib: ModuleType, arch: Arch, name: str) -> bool:
    # Negative numbers are calls that this architecture or this libseccomp does not have.
    wanted = lib.Arch.X86_64 if arch == "x86_64" else lib.Arch.AARCH64
    number: int = lib.resolve_syscall(wanted, name)
    return number >= 0


def _calls(lib: ModuleType, arch: Arch) -> object:
    seccomp = _filter(lib, lib.ERRNO(ENOSYS), arch)
    for name in sorted(seccomp_rules.ALLOWED):
        if _known(lib, arch, name):
            seccomp.add_rule(lib.ALLOW, name)  # type: ignore[attr-defined]
    for name in sorted(seccomp_rules.REFUSED - {"personality"}):
        if _known(lib, arch, name):
            seccomp.add_rule(lib.ERRNO(EPERM), name)  # type: ignore[attr-defined]
    for value in seccomp_rules.ALLOWED_PERSONALITIES:
        seccomp.add_rule(lib.ALLOW, "personality", lib.Arg(0, lib.EQ, value))  # type: ignore[attr-defined]
    return seccomp


def _arguments(lib: ModuleType, arch: Arch) -> object:
    seccomp = _filter(lib, lib.ALLOW, arch)
    refuse = lib.ERRNO(EPERM)
    rule = seccomp.add_rule  # type: ignore[attr-defined]
    for flag in seccomp_rules.CLONE_NEW_FLAGS:
        rule(refuse, "clone", lib.Arg(0, lib.MASKED_EQ, flag, flag))
    for request in seccomp_rules.REFUSED_IOCTLS:
        rule(refuse, "ioctl", lib.Arg(1, lib.MASKED_EQ, _LOW_32, request))
    for family in range(seccomp_rules.FAMILY_END):
        if family not in seccomp_rules.ALLOWED_FAMILIES:
            rule(refuse, "socket", lib.Arg(0, lib.EQ, family))
            rule(refuse, "socketpair", lib.Arg(0, lib.EQ, family))
    rule(refuse, "socket", lib.Arg(0, lib.GE, seccomp_rules.FAMILY_END))
    rule(refuse, "socketpair", lib.Arg(0, lib.GE, seccomp_rules.FAMILY_END))
    return seccomp


def _export(seccomp: object) -> bytes:
    with tempfile.TemporaryFile() as file:
        seccomp.export_bpf(file)  # type: ignore[attr-defined]
        file.seek(0)
        return file.read()


@cache
def _fingerprint(arch: Arch) -> str:
    text = repr((_REVISION, arch, sorted(seccomp_rules.ALLOWED), sorted(seccomp_rules.REFUSED)))
    text += repr(
        (
            seccomp_rules.CLONE_NEW_FLAGS,
            seccomp_rules.REFUSED_IOCTLS,
            seccomp_rules.ALLOWED_FAMILIES,
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compiled(directory: Path) -> tuple[Path, Path]:
    """Return files with the two filters for this machine, compiled at first use."""
    arch = machine()
    stem = f"{arch}-{_fingerprint(arch)}"
    paths = (directory / f"{stem}-calls", directory / f"{stem}-arguments")
    if not all(p.exists() for p in paths):
        for path, program in zip(paths, compile_filters(arch), strict=True):
            handle, temporary = tempfile.mkstemp(dir=directory)
            with os.fdopen(handle, "wb") as file:
                file.write(program)
            os.rename(temporary, path)
    return paths
