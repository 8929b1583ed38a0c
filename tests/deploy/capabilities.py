"""The capabilities that this machine can give to a container."""

from __future__ import annotations

from pathlib import Path

# By number, as the kernel has them.
_CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
    SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG
    WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
""".split()  # noqa: SIM905  (forty quoted names read worse)


def lacking() -> list[str]:
    """Return the capabilities that this machine lacks and cannot give to a container."""
    told = next(line for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("CapBnd"))  # fmt: skip
    had = int(told.split()[1], 16)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return [_CAPABILITIES[bit] for bit in range(last + 1) if not had >> bit & 1]
