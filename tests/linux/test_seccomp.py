"""The seccomp filters, interpreted step by step."""

from __future__ import annotations

import struct
import sys
from errno import ENOSYS, EPERM

import pyseccomp
import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_runtime.linux.confinement import seccomp_bpf, seccomp_rules
from tests.shared_sandbox_cases import few

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
DANGEROUS = """
    ptrace process_vm_readv process_vm_writev pidfd_getfd io_uring_setup bpf
    perf_event_open userfaultfd keyctl add_key request_key mount
    umount2 fsopen fsmount move_mount open_tree mount_setattr
    setns unshare pivot_root chroot open_by_handle_at name_to_handle_at
    fanotify_init kexec_load init_module finit_module delete_module syslog
    settimeofday clock_settime adjtimex reboot swapon quotactl
    acct kcmp mbind
    """.split()  # noqa: SIM905
ARCHES = ("x86_64", "aarch64")


def run(program: bytes, number: int, audit: int, *args: int) -> int:
    """Classic BPF over struct seccomp_data: just the instructions libseccomp emits."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, audit, 0, *(*args, *(0,) * (6 - len(args))))
    code = [struct.unpack_from("<HBBI", program, i) for i in range(0, len(program), 8)]
    a, at = 0, 0
    while True:
        op, jt, jf, k = code[at]
        at += 1
        match op:
            case 0x20:  # ld [k]
                (a,) = struct.unpack_from("<I", data, k)
            case 0x54:  # and #k
                a &= k
            case 0x05:  # ja
                at += k
            case 0x15:  # jeq
                at += jt if a == k else jf
            case 0x25:  # jgt
                at += jt if a > k else jf
            case 0x35:  # jge
                at += jt if a >= k else jf
            case 0x06:  # ret
                return k
            case _:
                raise AssertionError(f"instruction {op:#x} is not known here")


def verdict(arch: seccomp_bpf.Arch, name: str, *args: int) -> int:
    """Return the stricter of the two filters' results, as the kernel does."""
    lib_arch = pyseccomp.Arch.X86_64 if arch == "x86_64" else pyseccomp.Arch.AARCH64
    number = pyseccomp.resolve_syscall(lib_arch, name)
    return min(run(p, number, AUDIT[arch], *args) for p in seccomp_bpf.compile_filters(arch))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", DANGEROUS)
def test_dangerous_calls_fail_with_eperm(arch: seccomp_bpf.Arch, name: str) -> None:
    assert verdict(arch, name) == ERRNO | EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_clone3_fails_with_enosys_so_that_the_c_library_falls_back(arch: seccomp_bpf.Arch) -> None:
    assert verdict(arch, "clone3") == ERRNO | ENOSYS


@pytest.mark.parametrize("arch", ARCHES)
def test_an_unknown_call_fails_with_enosys(arch: seccomp_bpf.Arch) -> None:
    calls, arguments = seccomp_bpf.compile_filters(arch)
    assert run(calls, 6000, AUDIT[arch]) == ERRNO | ENOSYS
    assert run(arguments, 6000, AUDIT[arch]) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["read", "execve", "futex", "setresuid", "openat2", "socketpair"])
def test_ordinary_calls_are_allowed(arch: seccomp_bpf.Arch, name: str) -> None:
    assert verdict(arch, name, 1) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("flag", seccomp_rules.CLONE_NEW_FLAGS)
def test_clone_with_a_new_namespace_is_refused_also_among_other_flags(
    arch: seccomp_bpf.Arch, flag: int
) -> None:
    assert verdict(arch, "clone", flag) == ERRNO | EPERM
    assert verdict(arch, "clone", flag | 0x100 | 0x11) == ERRNO | EPERM


@pytest.mark.parametrize("arch", ARCHES)
def test_clone_for_a_thread_is_allowed(arch: seccomp_bpf.Arch) -> None:
    assert verdict(arch, "clone", 0x3D0F00) == ALLOW


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("high", [0, 1 << 32, 0xDEADBEEF << 32])
def test_terminal_injection_is_refused_on_the_low_32_bits(
    arch: seccomp_bpf.Arch, high: int
) -> None:
    assert verdict(arch, "ioctl", 0, high | 0x5412) == ERRNO | EPERM
    assert verdict(arch, "ioctl", 0, high | 0x541C) == ERRNO | EPERM
    assert verdict(arch, "ioctl", 0, high | 0x5401) == ALLOW


@pytest.mark.parametrize("arch", few(ARCHES))
def test_only_four_socket_families_exist(arch: seccomp_bpf.Arch) -> None:
    allowed = {f for f in range(256) if verdict(arch, "socket", f) == ALLOW}
    assert allowed == {1, 2, 10, 16}


@pytest.mark.parametrize("arch", ARCHES)
def test_calls_of_another_architecture_are_not_allowed(arch: seccomp_bpf.Arch) -> None:
    other = AUDIT["aarch64" if arch == "x86_64" else "x86_64"]
    for program in seccomp_bpf.compile_filters(arch):
        assert run(program, 0, other) not in (ALLOW,)


def test_the_lists_do_not_overlap() -> None:
    assert not seccomp_rules.ALLOWED & seccomp_rules.REFUSED


def test_an_installation_without_the_library_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(BackendUnavailable, match="require the library pyseccomp") as refused:
        seccomp_bpf.available()
    assert refused.value.hint == "pip install pyseccomp, or name a daemon (url=, SANDKASTEN_URL)"
