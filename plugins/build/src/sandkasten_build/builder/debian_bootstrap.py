"""Bootstrap a Debian from its packages with mmdebstrap: one layer, reproducible per mirror and
recipe.

As root it runs in its own mount and process namespaces, so that a killed bootstrap leaves no
mount behind; without root in mmdebstrap's own user namespace, or under fakechroot. Blocking. Raises
InvalidRequest for an invalid recipe, and BuildFailed with the end of the output.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from sandkasten.errors import BuildFailed, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.images.image_info import ImageProgress
from sandkasten.model.sandbox.cell_spec import DEFAULT_PATH
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_build.builder.apt_sources import sources_for
from sandkasten_build.builder.build_cache import BuildCache, build_key
from sandkasten_build.child_program import Child, Deadline, child_environment
from sandkasten_runtime.images.image_config import ImageConfig, machine_architecture
from sandkasten_runtime.images.image_names import new_name
from sandkasten_runtime.images.image_plugins import Built

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from sandkasten.model.images.image_info import OnProgress
    from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage

VARIANTS: Final = (
    "extract", "custom", "essential", "apt", "required", "minbase", "buildd", "important",
    "debootstrap", "standard",
)  # fmt: skip
_SUITE: Final = re.compile(r"[a-z][a-z0-9-]{1,40}\Z")
_PACKAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9+.-]{0,120}(?::[a-z0-9]{1,20})?(?:=[A-Za-z0-9.+:~-]{1,120}|/[a-z][a-z-]{1,40})?\Z"
)
_MIRROR_SCHEMES: Final = ("http", "https", "file", "copy")
_PROGRAM: Final = "mmdebstrap"
_UIDMAP: Final = "install uidmap (sudo apt-get install uidmap)"
_RANGE: Final = (
    "give the user a range in /etc/subuid and /etc/subgid "
    "(sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER)"
)
_APT_HELPER: Final = "/usr/lib/apt/apt-helper"
# The earliest time that zip archives can hold, for mirrors without a date.
_FIXED_EPOCH: Final = 315_532_800
# The building machine must not show in the image; sandboxes get their own of both.
_FORGET_THE_HOST: Final = 'rm -f "$1/etc/resolv.conf" "$1/etc/hostname"'


@dataclass(frozen=True, slots=True)
class DebianRecipe:
    """A checked recipe. The same packages in another order are the same recipe."""

    suite: str
    include: tuple[str, ...] = ()
    variant: str = "minbase"
    mirror: str | None = None


def debian_recipe(
    suite: str, include: Sequence[str] = (), variant: str = "minbase", mirror: str | None = None
) -> DebianRecipe:
    if not _SUITE.match(suite):
        raise InvalidRequest(
            f"{shown(suite)} is not a suite of Debian", hint="name one, such as bookworm"
        )
    for package in include:
        if not _PACKAGE.match(package):
            raise InvalidRequest(
                f"{shown(package)} is not a package", hint="names look like python3 or git=1:2.39"
            )
    if variant not in VARIANTS:
        raise InvalidRequest(
            f"there is no variant {shown(variant)}", hint=did_you_mean(variant, VARIANTS)
        )
    return DebianRecipe(suite, tuple(sorted(set(include))), variant, _checked_mirror(mirror))


def _checked_mirror(mirror: str | None) -> str | None:
    if mirror is None:
        return None
    url = mirror
    if mirror.startswith("deb "):
        # A whole line of sources.list, for a mirror with components or its own key.
        bare = re.sub(r"\[[^\]]*\]", "", mirror).split()
        url = bare[1] if len(bare) > 2 else ""
    parts = urlsplit(url)
    if (
        len(mirror) > 1000
        or not mirror.isprintable()
        or parts.scheme not in _MIRROR_SCHEMES
        or " " in url
    ):
        raise InvalidRequest(
            f"{shown(mirror)} is not a mirror",
            hint="write http://host/debian, file:///srv/mirror, or a line of sources.list",
        )
    if parts.username or parts.password:
        raise InvalidRequest(
            "a mirror's address must not hold a password: it would stay in the image",
            hint="put the login into /etc/apt/auth.conf.d",
        )
    return mirror


class Bootstrap:
    """Makes Debian images in a store."""

    def __init__(
        self,
        store: LayerStore,
        *,
        timeout_s: float = 3600.0,
        environ: Mapping[str, str] | None = None,
        etc: Path = Path("/etc"),
    ) -> None:
        self._store = store
        self._cache = BuildCache(store.root)
        self._timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ
        self._etc = etc

    def build(
        self,
        name: str,
        recipe: DebianRecipe,
        *,
        refresh: bool = False,
        progress: OnProgress | None = None,
        called_off: threading.Event | None = None,
    ) -> Built:
        """Build the image under its name; use the cache unless `refresh`."""
        name = new_name(name)
        key = build_key(
            kind="debian",
            form=1,
            suite=recipe.suite,
            include=list(recipe.include),
            variant=recipe.variant,
            mirror=recipe.mirror,
            architecture=machine_architecture(),
        )
        with self._store.working():
            image_id = None if refresh else self._cache.get(key)
            if image_id is not None and self._store.there(image_id):
                return Built(self._store.tag(image_id, name), cached=True)
            deadline = Deadline(self._timeout_s, called_off)
            image = self._make(name, recipe, deadline, progress)
            self._cache.put(key, image.id)
            return Built(image, cached=False)

    def _make(
        self,
        name: str,
        recipe: DebianRecipe,
        deadline: Deadline,
        progress: OnProgress | None,
    ) -> StoredImage:
        _require_program()
        mode = bootstrap_mode()
        lines = _source_lines(recipe, self._etc)

        def report(text: str) -> None:
            if progress is not None:
                progress(ImageProgress(f"{_PROGRAM} {recipe.suite}", 0, text=text))

        with ExitStack() as stack:
            scratch = stack.enter_context(self._scratch(mode))
            sources = scratch / "sources.list"
            sources.write_text("".join(f"{line}\n" for line in lines))
            options = scratch / "apt.conf"
            options.write_text(_apt_options())
            # The program reads them in its own user namespace.
            for file in (sources, options):
                file.chmod(0o644)
            epoch = _epoch(recipe, lines, scratch)
            child = stack.enter_context(
                Child(
                    command(recipe, mode, sources, options),
                    env=child_environment(
                        self._environ, TMPDIR=str(scratch), SOURCE_DATE_EPOCH=str(epoch)
                    ),
                    deadline=deadline,
                    what=f"{_PROGRAM} of {recipe.suite}",
                    report=report,
                )
            )
            layer = self._store.add_layer(
                cast("BinaryIO", child), progress=lambda _: deadline.check("unpacking a bootstrap")
            )
        config = ImageConfig(
            architecture=machine_architecture(),
            env={"PATH": DEFAULT_PATH},
            cmd=("bash",),
            created=datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z"),
        )
        described = f"debian {recipe.suite} {recipe.variant} {','.join(recipe.include)}".strip()
        return self._store.put_image([layer.diff_id], config, [name], source=described)

    @contextmanager
    def _scratch(self, mode: str) -> Iterator[Path]:
        """Yield a directory that the program can use, removed at the end."""
        if mode != "unshare":
            with self._store.place() as path:
                yield path
            return
        # Its root is another user of this machine, to whom the data directory is closed.
        with tempfile.TemporaryDirectory(
            prefix="sandkasten-build-", dir="/var/tmp", ignore_cleanup_errors=True
        ) as name:
            os.chmod(name, 0o755)  # noqa: S103
            yield Path(name)


def command(recipe: DebianRecipe, mode: str, sources: Path, options: Path) -> list[str]:
    """Return the command line; nothing of a recipe can be taken for an option. Pure."""
    isolated = [
        "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
        "--propagation", "private", "--",
    ]  # fmt: skip
    bare = recipe.variant == "extract"
    words = [
        *(isolated if mode == "root" else ()),
        _PROGRAM,
        f"--mode={mode}",
        "--format=tar",
        f"--variant={recipe.variant}",
        "--skip=output/dev",
        f"--aptopt={options}",
        # The last hook that each mode reaches.
        f"--{'extract' if bare else 'customize'}-hook={_FORGET_THE_HOST}",
    ]
    if recipe.include:
        words.append(f"--include={','.join(recipe.include)}")
    plain = recipe.mirror is not None and not recipe.mirror.startswith("deb ")
    # Given a plain address, the program finds the key that Debian signs the suite with.
    mirror = _copied(recipe.mirror) if plain and recipe.mirror else str(sources)
    return [*words, recipe.suite, "-", mirror]


def bootstrap_mode() -> str:
    """Return how this user can create a foreign root. Raise BuildFailed if there is no way."""
    if os.geteuid() == 0:
        return "root"
    mapped = all(shutil.which(program) for program in ("newuidmap", "newgidmap"))
    if mapped and _has_subordinates():
        return "unshare"
    if all(shutil.which(program) for program in ("fakechroot", "fakeroot")):
        return "fakechroot"
    missing = [] if mapped else [_UIDMAP]
    missing += [] if _has_subordinates() else [_RANGE]
    raise BuildFailed(
        "a Debian cannot be bootstrapped by this user",
        hint=f"{' and '.join(missing)}; or build as root, or install fakechroot and fakeroot",
    )


def _has_subordinates() -> bool:
    uid = os.geteuid()
    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    for file in ("/etc/subuid", "/etc/subgid"):
        try:
            lines = Path(file).read_text().splitlines()
        except OSError:
            return False
        if not any(line.partition(":")[0] in names for line in lines):
            return False
    return True


def _require_program() -> None:
    if shutil.which(_PROGRAM) is None:
        raise BuildFailed(
            f"{_PROGRAM}, which bootstraps Debian, is not installed",
            hint=f"apt-get install {_PROGRAM}",
        )


def _source_lines(recipe: DebianRecipe, etc: Path) -> list[str]:
    if recipe.mirror is None:
        return [_copied(source.line()) for source in sources_for(recipe.suite, etc)]
    if recipe.mirror.startswith("deb "):
        return [_copied(recipe.mirror)]
    return [f"deb {_copied(recipe.mirror)} {recipe.suite} main"]


def _copied(source: str) -> str:
    """Return a file mirror as a copied one: programs in the new root cannot see its path."""
    return re.sub(r"(^|\s)file:/", r"\1copy:/", source)


def _apt_options() -> str:
    """Return how this machine's apt reaches its mirrors: proxies and authorities. Written to a
    file, because a proxy's address may contain a password.
    """
    try:
        dump = subprocess.run(
            ["apt-config", "dump"],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=child_environment({}),
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    wanted = re.compile(r'Acquire::https?::[^\s]+ ".+";\Z')
    return "".join(f"{line}\n" for line in dump.splitlines() if wanted.match(line))


def _epoch(recipe: DebianRecipe, lines: Sequence[str], scratch: Path) -> int:
    """Return the date of the mirror's suite, so that the same state of it gives the same image."""
    bare = re.sub(r"\[[^\]]*\]", "", lines[0]).split()
    uri = f"{bare[1].rstrip('/')}/dists/{recipe.suite}/InRelease"
    target = scratch / "InRelease"
    try:
        subprocess.run(
            [_APT_HELPER, "download-file", uri, str(target)],
            capture_output=True,
            timeout=30,
            check=True,
            env=child_environment(os.environ),
        )
        match = re.search(r"^Date: (.+)$", target.read_text(errors="replace"), re.MULTILINE)
        return int(parsedate_to_datetime(match[1]).timestamp()) if match else _FIXED_EPOCH
    except (OSError, subprocess.SubprocessError, ValueError):
        return _FIXED_EPOCH
    finally:
        target.unlink(missing_ok=True)
