"""Definitions of the images that are built by name (`model/images/known_images.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.model.images.known_images import DENO, JJAVA, KnownImage
from sandkasten.model.sandbox.cell_spec import E2B_HOME, USER_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

# The account of E2B's images, which have it with the same permission for sudo. Its home is the
# workspace, so the image has no directory for it.
_E2B_USER: Final = (
    f"groupadd --gid {USER_ID} user",
    f"useradd --uid {USER_ID} --gid {USER_ID} --no-create-home --home-dir {E2B_HOME} "
    "--shell /bin/bash user",
    "umask 0337 && echo 'user ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/user",
)
# Code contexts of E2B may start in /root, because they run as root there.
_ENTER_ROOT: Final = ("chmod 0711 /root",)
# E2B's kernels display what Pillow shows, and what it saves under a name.
_PICTURES: Final = (
    """\
cat >/usr/local/lib/python3.11/dist-packages/pillow_display.py <<'END'
from IPython.display import display
from PIL.Image import Image

def load_ipython_extension(shell):
    save = Image.save
    def save_and_display(image, fp, format=None, **params):
        save(image, fp, format, **params)
        if isinstance(fp, str):
            display(image)
    Image.save = save_and_display
    Image.show = lambda image, title=None: display(image)
END
mkdir -p /etc/ipython
cat >/etc/ipython/ipython_kernel_config.py <<'END'
get_config().InteractiveShellApp.extensions = ["pillow_display"]
END
""",
)
# The kernel for Java. The index may not replace the programs of a version.
_JJAVA_FILES: Final = {
    "jjava.jar": "55f513303f0862ca67fbc21c5da81a40c174d7079945e1b1ad52eb5bbed7bab6",
    "jjava-launcher.jar": "83622611e5425cc93643c09bac384e26c1dd101c1de2b11fa3adb5e0328263f8",
}
_CHECK_JJAVA: Final = tuple(
    f"echo '{digest}  /usr/local/share/jupyter/kernels/java/{name}' | sha256sum --check --strict"
    for name, digest in _JJAVA_FILES.items()
)

_BASE: Final = ("bash", "coreutils", "procps", "ca-certificates")
_PIP: Final = ("python3", "python3-pip", "python3-venv")
_NODE: Final = ("nodejs", "npm")
# What a model types after ModuleNotFoundError and "command not found".
_TOOLS: Final = (*_BASE, *_PIP, "python-is-python3", "git", "curl")
_SCIENCE: Final = tuple(
    f"python3-{name}"
    for name in (
        "ipykernel", "numpy", "pandas", "matplotlib", "scipy", "sklearn", "pil", "openpyxl"
    )
)  # fmt: skip

DEFINITIONS: Final[Mapping[str, KnownImage]] = {
    "datascience": KnownImage("bookworm", (*_TOOLS, *_SCIENCE)),
    # These two have the names of E2B's templates, and what programs for these expect.
    "base": KnownImage("bookworm", (*_TOOLS, *_NODE, "build-essential", "sudo"), (), _E2B_USER),
    # Kernels for R (r-cran-irkernel), Java (jjava), JavaScript and TypeScript (deno).
    "code-interpreter-v1": KnownImage(
        "bookworm",
        (
            *_TOOLS,
            *_SCIENCE,
            *_NODE,
            "build-essential",
            "sudo",
            "jq",
            "r-cran-irkernel",
            "openjdk-17-jdk-headless",
        ),
        (DENO, JJAVA),
        (*_E2B_USER, *_ENTER_ROOT, *_PICTURES, *_CHECK_JJAVA),
    ),
    # Packages of the Dockerfiles in images/, which a test compares.
    "sandbox-runtime:base": KnownImage("bookworm", _BASE),
    "sandbox-runtime:python": KnownImage("bookworm", (*_BASE, *_PIP)),
    "sandbox-runtime:node": KnownImage("bookworm", (*_BASE, *_NODE)),
}
