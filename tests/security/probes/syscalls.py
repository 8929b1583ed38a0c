"""Runs inside: attempts system calls with harmless arguments, each in a child, and reports results.

Where possible, a call is made so that an unfiltered kernel would allow it (tracing or comparing
itself), so that a refusal comes from the filter.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import pty
import signal
import sys
import termios

X86 = platform.machine() == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
buffer = ctypes.create_string_buffer(4096)
ADDRESS = ctypes.addressof(buffer)
MINUS_1 = (1 << 64) - 1
# What the kernel is shown must not be collected meanwhile.
KEPT: list = []


def call(number, *args):
    words = [ctypes.c_ulong(a & MINUS_1) for a in (*args, 0, 0, 0, 0, 0, 0)[:6]]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *words)
    return {"result": result, "errno": ctypes.get_errno() if result == -1 else 0}


def iovec():
    at = ctypes.create_string_buffer(16)
    ctypes.c_uint64.from_buffer(at, 0).value = ADDRESS
    ctypes.c_uint64.from_buffer(at, 8).value = 1
    KEPT.append(at)
    return ctypes.addressof(at)


def text(value):
    KEPT.append(ctypes.create_string_buffer(value))
    return ctypes.addressof(KEPT[-1])


# name: (x86_64, aarch64, arguments)
TABLE = {
    "ptrace": (101, 117, lambda: (0, 0, 0, 0)),  # TRACEME
    "process_vm_readv": (310, 270, lambda: (os.getpid(), iovec(), 1, iovec(), 1, 0)),
    "process_vm_writev": (311, 271, lambda: (os.getpid(), iovec(), 1, iovec(), 1, 0)),
    "pidfd_getfd": (438, 438, lambda: (os.pidfd_open(os.getpid()), 0, 0)),
    "io_uring_setup": (425, 425, lambda: (4, ADDRESS)),
    "io_uring_enter": (426, 426, lambda: (-1, 0, 0, 0)),
    "io_uring_register": (427, 427, lambda: (-1, 0, 0, 0)),
    "bpf": (321, 280, lambda: (0, ADDRESS, 0)),
    "perf_event_open": (298, 241, lambda: (ADDRESS, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, lambda: (1,)),  # UFFD_USER_MODE_ONLY
    "add_key": (248, 217, lambda: (text(b"user"), text(b"user"), ADDRESS, 1, -2)),
    "request_key": (249, 218, lambda: (text(b"user"), text(b"user"), 0, 0)),
    "keyctl": (250, 219, lambda: (0, -3, 0)),  # GET_KEYRING_ID of the session
    "mount": (165, 40, lambda: (0, text(b"/tmp"), 0, 0, 0)),
    "umount2": (166, 39, lambda: (text(b"/nonexistent"), 0)),
    "fsopen": (430, 430, lambda: (text(b"tmpfs"), 0)),
    "fsconfig": (431, 431, lambda: (-1, 0, 0, 0, 0)),
    "fsmount": (432, 432, lambda: (-1, 0, 0)),
    "fspick": (433, 433, lambda: (-1, 0, 0)),
    "open_tree": (428, 428, lambda: (-100, text(b"/"), 0)),
    "move_mount": (429, 429, lambda: (-1, 0, -1, 0, 0)),
    "mount_setattr": (442, 442, lambda: (-1, 0, 0, 0, 0)),
    "setns": (308, 268, lambda: (-1, 0)),
    "unshare": (272, 97, lambda: (0,)),
    "unshare_user": (272, 97, lambda: (0x1000_0000,)),
    "pivot_root": (155, 41, lambda: (text(b"/nonexistent"), text(b"/nonexistent"))),
    "chroot": (161, 51, lambda: (text(b"/nonexistent"),)),
    "open_by_handle_at": (304, 265, lambda: (-1, ADDRESS, 0)),
    "name_to_handle_at": (303, 264, lambda: (-100, text(b"/"), ADDRESS, ADDRESS + 512, 0)),
    "fanotify_init": (300, 262, lambda: (0x200, 0)),  # unprivileged FAN_REPORT_FID
    "fanotify_mark": (301, 263, lambda: (-1, 0, 0, -1, 0)),
    "kexec_load": (246, 104, lambda: (0, 17, 0, -1)),
    "kexec_file_load": (320, 294, lambda: (-1, -1, 0, 0, -1)),
    "init_module": (175, 105, lambda: (0, 0, 0)),
    "finit_module": (313, 273, lambda: (-1, 0, 0)),
    "delete_module": (176, 106, lambda: (text(b"no-such-module"), 0)),
    "syslog": (103, 116, lambda: (10, 0, 0)),  # SIZE_BUFFER
    "settimeofday": (164, 170, lambda: (-1, 0)),
    "clock_settime": (227, 112, lambda: (-1, 0)),
    "clock_adjtime": (305, 266, lambda: (0, ADDRESS)),  # modes 0: only reads
    "adjtimex": (159, 171, lambda: (ADDRESS,)),
    "reboot": (169, 142, lambda: (0, 0, 0, 0)),  # wrong magic
    "swapon": (167, 224, lambda: (0, 0)),
    "swapoff": (168, 225, lambda: (0,)),
    "acct": (163, 89, lambda: (text(b"/nonexistent"),)),
    "quotactl": (179, 60, lambda: (0, 0, 0, 0)),
    "quotactl_fd": (443, 443, lambda: (-1, 0, 0, 0)),
    "sethostname": (170, 161, lambda: (0, -1)),
    "setdomainname": (171, 162, lambda: (0, -1)),
    "kcmp": (312, 272, lambda: (os.getpid(), os.getpid(), 1, 0, 0)),
    "lookup_dcookie": (212, 18, lambda: (0, 0, 0)),
    "mbind": (237, 235, lambda: (0, 0, 0, 0, 0, 0)),
    "set_mempolicy": (238, 237, lambda: (0, 0, 0)),
    "get_mempolicy": (239, 236, lambda: (ADDRESS, 0, 0, 0, 0)),
    "set_mempolicy_home_node": (450, 450, lambda: (0, 0, 0, 0)),
    "migrate_pages": (256, 238, lambda: (0, 0, 0, 0)),
    "move_pages": (279, 239, lambda: (0, 0, 0, 0, 0, 0)),
    "memfd_secret": (447, 447, lambda: (0,)),
    "process_madvise": (440, 440, lambda: (os.pidfd_open(os.getpid()), iovec(), 1, 4, 0)),
    "vhangup": (153, 58, lambda: ()),
    "nfsservctl": (180, 42, lambda: (0, 0, 0)),
    "personality_no_randomize": (135, 92, lambda: (0x004_0000,)),
    "iopl": (172, None, lambda: (0,)),
    "ioperm": (173, None, lambda: (0, 0, 0)),
    "modify_ldt": (154, None, lambda: (0, ADDRESS, 16)),
    "uselib": (134, None, lambda: (0,)),
    "ustat": (136, None, lambda: (0, ADDRESS)),
    "_sysctl": (156, None, lambda: (0,)),
    # What no list knows answers as an older kernel would.
    "clone3": (435, 435, lambda: (ADDRESS, 64)),
    "statmount": (457, 457, lambda: (0, 0, 0, 0)),
    "listmount": (458, 458, lambda: (0, 0, 0, 0)),
    "lsm_get_self_attr": (459, 459, lambda: (0, 0, 0, 0)),
    "open_tree_attr": (467, 467, lambda: (-100, text(b"/"), 0, 0, 0)),
    "beyond_every_table": (9999, 9999, lambda: ()),
    # The twin: the way of asking is right, and what is allowed is allowed.
    "getpid": (39, 172, lambda: ()),
    "personality_query": (135, 92, lambda: (0xFFFF_FFFF,)),
}

NEW = {
    "time": 0x80,
    "mount": 0x2_0000,
    "cgroup": 0x200_0000,
    "uts": 0x400_0000,
    "ipc": 0x800_0000,
    "user": 0x1000_0000,
    "pid": 0x2000_0000,
    "net": 0x4000_0000,
    "nothing": 0,
}


def plain(name):
    numbers = TABLE[name]
    number = numbers[0] if X86 else numbers[1]
    return {"absent": True} if number is None else call(number, *numbers[2]())


def clone(name):
    flags = NEW[name] | (0 if name == "time" else signal.SIGCHLD)
    answer = call(56 if X86 else 220, flags, 0, 0, 0, 0)
    if answer["result"] == 0:
        os._exit(0)
    return answer


def ioctl(name):
    os.setsid()
    _, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    request = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCGWINSZ": 0x5413}[name.split("+")[0]]
    if name.endswith("+high"):
        request |= 0xDEAD_BEEF << 32
    return call(16 if X86 else 29, terminal, request, ADDRESS)


def family(name):
    number, high = int(name.split("+")[0]), name.endswith("+high")
    number |= (1 << 32) if high else 0
    seen = {}
    for kind in (1, 2, 3, 5):  # STREAM, DGRAM, RAW, SEQPACKET
        answer = call(41 if X86 else 198, number, kind, 0)
        seen[str(kind)] = answer["errno"]
        pair = call(53 if X86 else 199, number, kind, 0, ADDRESS)
        seen[f"pair {kind}"] = pair["errno"]
    return seen


def other_abi(name):
    """x86_64 has two more system call ABIs, each with its own numbers."""
    if not X86:
        return {"absent": True}
    if name == "x32":
        return call(0x4000_0000 | 272, 0x1000_0000)
    if name == "x32 getpid":
        return call(0x4000_0000 | 39)
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    number, argument = (310, 0x1000_0000) if name == "i386 unshare" else (20, 0)
    code = b"\x53\xb8" + number.to_bytes(4, "little") + b"\xbb" + argument.to_bytes(4, "little")
    page.write(code + b"\xcd\x80\x5b\xc3")
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = function()
    return {"result": -1 if -4096 < result < 0 else result, "errno": -result if result < 0 else 0}


KINDS = {"plain": plain, "clone": clone, "ioctl": ioctl, "family": family, "abi": other_abi}


def attempt(kind, name):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer = KINDS[kind](name)
        except OSError as exc:
            answer = {"failed": errno.errorcode.get(exc.errno or 0, str(exc))}
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return json.loads(said)


sys.stdout.write(json.dumps({f"{k}:{n}": attempt(k, n) for k, n in json.loads(sys.argv[1])}))
