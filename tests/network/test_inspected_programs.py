"""Programs that read no variable for certificates, or one of their own, work through inspection."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten import Images
from tests import imagekit
from tests.network.servers import make_files, make_npm_package
from tests.network.test_programs import apt_commands
from tests.network.test_secrets import secret
from tests.platform_choice import LONG
from tests.shared_sandbox_cases import few

if TYPE_CHECKING:
    from sandkasten import Sandbox

pytestmark = [pytest.mark.root, pytest.mark.promise("P77")]
__all__ = ["secret"]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "secrets.md"
_JAVA = """
public class Get {
    public static void main(String[] a) throws Exception {
        System.out.print(new String(new java.net.URL(a[0]).openStream().readAllBytes()));
    }
}
"""
_CARGO = (
    '[package]\nname = "x"\nversion = "1.0.0"\n\n'
    '[dependencies]\ntiny = {{ version = "1.0.0", registry = "good" }}\n'
)
COMMANDS = {
    "apt": apt_commands("https://good.test:{port}/files/deb"),
    # Without any variable: the bundle of the system, or its hashed directory.
    "curl": "env -i curl -sS {url}",
    "openssl": "env -i openssl s_client -verify_return_error -connect good.test:{port} "
    "-servername good.test </dev/null >/dev/null 2>&1 && echo tiny",
    "python": 'env -i python3 -c \'import urllib.request as u; print(u.urlopen("{url}").read()'
    ".decode())'",
    "node": 'node -e \'require("https").get("{url}", r => r.pipe(process.stdout))\'',
    "npm": "npm install --no-audit --no-fund --prefix js --registry "
    "https://good.test:{port}/files/npm/ tiny && "
    "node -e 'console.log(require(\"./js/node_modules/tiny\"))'",
    "cargo": "mkdir -p c/src && cd c && touch src/lib.rs && echo '" + _CARGO + "' > Cargo.toml && "
    "CARGO_REGISTRIES_GOOD_INDEX=sparse+https://good.test:{port}/files/crates/ "
    "CARGO_HOME=/tmp/cargo /usr/bin/cargo fetch -q && "
    "ls /tmp/cargo/registry/cache/good.test-* | cut -c 1-4",
    "wget": "wget -qO- {url}",
    "go": "export PATH=$PATH:/usr/local/go/bin GOPATH=/tmp/go GOCACHE=/tmp/go-cache GOSUMDB=off "
    "GOTOOLCHAIN=local GOPROXY=https://good.test:{port}/files/go && "
    "go mod download tiny.test/tiny@v1.0.0 && cat /tmp/go/pkg/mod/tiny.test/tiny@v1.0.0/text",
    "java": "cat > Get.java <<'END'\n" + _JAVA.replace("{", "{{").replace("}", "}}") + "END\n"
    "java Get.java {url} 2>/dev/null",
}
# Packages of the tests have these; the others run in `make test-long` where the machine has them.
ALWAYS = ("apt", "curl", "openssl", "python", "node", "cargo")
SOMETIMES = {"npm": "/usr/bin/npm", "wget": "/usr/bin/wget", "go": "/usr/local/go/bin/go",
             "java": "/usr/bin/java"}  # fmt: skip


@pytest.fixture
def packages(api, tmp_path):
    """Serve packages below /files/, from a host that is inspected."""
    root, scratch = tmp_path / "files", tmp_path / "scratch"
    scratch.mkdir()
    (root / "npm").mkdir(parents=True)
    make_files(root, scratch)
    make_npm_package(root / "npm", f"https://good.test:{api.port}/files/npm")
    (root / "text").write_text("tiny\n")
    _go(root / "go" / "tiny.test" / "tiny" / "@v")
    _crate(root / "crates", f"https://good.test:{api.port}/files/crates")
    return api


def _go(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "v1.0.0.info").write_text('{"Version": "v1.0.0"}')
    (folder / "v1.0.0.mod").write_text("module tiny.test/tiny\n")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("tiny.test/tiny@v1.0.0/go.mod", "module tiny.test/tiny\n")
        archive.writestr("tiny.test/tiny@v1.0.0/text", "tiny\n")
    (folder / "v1.0.0.zip").write_bytes(made.getvalue())


def _crate(registry: Path, url: str) -> None:
    """Make a registry of cargo with one crate."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (
            ("Cargo.toml", '[package]\nname = "tiny"\nversion = "1.0.0"\n'),
            ("src/lib.rs", ""),
        ):
            entry = tarfile.TarInfo(f"tiny-1.0.0/{name}")
            entry.size, entry.mode = len(text), 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    (registry / "ti" / "ny").mkdir(parents=True)
    (registry / "tiny-1.0.0.crate").write_bytes(packed.getvalue())
    (registry / "config.json").write_text(json.dumps({"dl": url + "/{crate}-{version}.crate"}))
    line = {
        "name": "tiny",
        "vers": "1.0.0",
        "deps": [],
        "features": {},
        "yanked": False,
        "cksum": hashlib.sha256(packed.getvalue()).hexdigest(),
    }
    (registry / "ti" / "ny" / "tiny").write_text(json.dumps(line) + "\n")


def _told(box: Sandbox, port: int, programs: tuple[str, ...]) -> dict[str, object]:
    url = f"https://good.test:{port}/files/text"
    told: dict[str, object] = {}
    for name in programs:
        done = box.exec(COMMANDS[name].format(port=port, url=url), timeout_seconds=60)
        told[name] = done.output.strip().splitlines()[-1:] or done
    return told


@pytest.mark.parametrize("backend", few(["local", "oci", "gvisor"]))
def test_programs_trust_the_authority_without_configuration(boxed, packages, secret, backend):
    secret(basic="me")
    box = boxed(
        backend=backend, network={"allow": ["good.test"], "secrets": ["TOKEN"], "inspect": True}
    )
    asked: tuple[str, ...] = ALWAYS if backend == "local" or LONG else ("curl", "openssl")
    if LONG:
        asked += tuple(name for name, path in SOMETIMES.items() if shutil.which(path))
    assert _told(box, packages.port, asked) == dict.fromkeys(asked, ["tiny"])
    assert [one for one in box.network_log() if one.event == "refused"] == []


@pytest.mark.parametrize("backend", few(["local", "oci", "gvisor"]))
def test_an_image_has_the_authority_in_its_own_bundle_and_stays_as_it_is(
    boxed, packages, tmp_path, backend
):
    bundle = "etc/ssl/certs/ca-certificates.crt"
    base = imagekit.busybox_tar().read_bytes()
    files = {"etc": None, "etc/ssl": None, "etc/ssl/certs": None, bundle: b"the roots\n"}
    layers = [base, imagekit.layer(files)]
    archive = imagekit.write_tar(
        tmp_path / "small.tar",
        imagekit.docker_members(imagekit.sketch(layers=layers, names=("small:1",))),
    )
    Images(data_dir=tmp_path / "data").import_archive(archive, name="small")
    network = {"allow": ["good.test"], "inspect": True}
    box = boxed(backend=backend, image="small", network=network)
    found = box.exec(f"cat /{bundle} && ls /etc/ssl/certs").output
    mine = box.exec("cat /opt/sandkasten/tls/ca.pem").output
    assert found.startswith(f"the roots\n{mine}")
    assert re.search(r"^[0-9a-f]{8}\.0$", found, re.MULTILINE)
    other = boxed(backend=backend, image="small")
    assert other.exec(f"cat /{bundle}").output == "the roots\n"


def test_the_guide_lists_the_programs_that_were_run():
    rows = re.findall(r"^\| `(\w+)`", GUIDE.read_text(), re.MULTILINE)
    assert set(COMMANDS) | {"git", "pip"} <= set(rows)
