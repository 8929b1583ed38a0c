"""A small root file system with bash and Python, cut out of this Debian's own packages.

No registry is needed and nothing is downloaded: docker imports it as an image, runc runs on it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_WANTED = (
    "base-files",
    "bash",
    "coreutils",
    "busybox-static",
    "python3-minimal",
    "libpython3-stdlib",
)
_SKIP = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info", "/etc/skel")


def build(folder: Path) -> Path:
    """Makes `folder` (a root file system) and answers it."""
    names = _with_dependencies(_WANTED)
    listed = subprocess.run(
        ["dpkg-query", "-L", *names], capture_output=True, text=True, check=True
    ).stdout
    paths = sorted({line for line in listed.splitlines() if line.startswith("/")})
    present = [p for p in paths if p != "/." and not p.startswith(_SKIP) and Path(p).exists()]
    folder.mkdir(parents=True)
    # Merged /usr first, or members named /lib/… would make directories of these.
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path(f"/{name}").is_symlink():
            (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(f"usr/{name}")
    tar = ["tar", "--no-recursion", "-C", "/"]
    with subprocess.Popen(
        [*tar, "-cf", "-", "--null", "-T", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as packing:
        assert packing.stdin is not None
        with subprocess.Popen(
            ["tar", "-C", str(folder), "--keep-directory-symlink", "-xf", "-"],
            stdin=packing.stdout,
        ) as unpacking:
            for path in present:
                packing.stdin.write(path.lstrip("/").encode() + b"\0")
            packing.stdin.close()
            unpacking.wait()
        packing.wait()
    if packing.returncode or unpacking.returncode:
        raise RuntimeError("the root file system for the peers could not be made")
    for name in ("proc", "sys", "dev", "tmp", "workspace"):
        (folder / name).mkdir(exist_ok=True)
    # Alternatives and links made by post-install scripts are in no package's list.
    if not (folder / "usr/bin/sh").exists():
        (folder / "usr/bin/sh").symlink_to("bash")
    # As images of Python have them: AutoGen runs `python`, llm-sandbox names the user root.
    (folder / "usr/bin/python").symlink_to("python3")
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    return folder


def _with_dependencies(wanted: tuple[str, ...]) -> list[str]:
    """The packages and all they depend on, as far as they are installed here."""
    listed = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${Pre-Depends}, ${Depends}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needs: dict[str, list[str]] = {}
    for line in listed.splitlines():
        name, _, depends = line.partition("\t")
        choices = depends.replace("|", ",").split(",")
        needs[name] = [c.split("(")[0].split(":")[0].strip() for c in choices]
    closure: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in needs and name not in closure:
            closure.add(name)
            # These pull in a whole system and nothing a benchmark runs.
            queue += [n for n in needs[name] if n not in ("debconf", "dpkg", "mawk", "media-types")]
    return sorted(closure)
