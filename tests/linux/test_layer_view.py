"""Files of an image as an overlay of its layers shows them, and certificates added to them."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten_runtime.linux.storage.layer_view import LayerView
from sandkasten_runtime.linux.system_trust import hashed_name, trusting_image
from sandkasten_runtime.linux.trust_files import authority_pem, make_authority


@pytest.fixture
def layers(tmp_path):
    def make(*trees):
        made = []
        for number, tree in enumerate(trees):
            root = tmp_path / f"layer{number}"
            root.mkdir()
            for name, content in tree.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    os.mknod(path, stat.S_IFCHR, 0)
                elif content.startswith("->"):
                    path.symlink_to(content.removeprefix("->"))
                elif content == "opaque":
                    path.mkdir()
                    os.setxattr(path, "trusted.overlay.opaque", b"y")
                else:
                    path.write_text(content)
            made.append(str(root))
        return made

    return make


@pytest.mark.root
def test_upper_layers_replace_hide_and_remove(layers):
    view = LayerView(
        layers(
            {"etc/a": "low", "etc/b": "low", "gone/x": "low", "new/x": "low", "was/x": "low"},
            {"etc/a": "high", "etc/b": None, "gone": None, "new": "opaque", "was": "a file"},
            {"was/y": "top"},
        )
    )
    found = {path: view.resolve(path) for path in ("/etc/a", "/etc/b", "/gone/x", "/new/x")}
    assert found == {"/etc/a": "/etc/a", "/etc/b": None, "/gone/x": None, "/new/x": None}
    assert view.read("/etc/a", 10) == b"high"
    assert view.read("/etc/a", 3) is None
    assert view.is_directory("/new")
    # A file between two directories ends the lower one.
    assert (view.resolve("/was/y"), view.resolve("/was/x")) == ("/was/y", None)


def test_symlinks_are_resolved_within_the_image(layers, tmp_path):
    (tmp_path / "outside").write_text("of the host")
    view = LayerView(
        layers(
            {
                "etc/ssl/certs": "->../pki/tls/certs",
                "etc/pki/tls/certs/ca-bundle.crt": "->/etc/pki/extracted/bundle.pem",
                "etc/pki/extracted/bundle.pem": "roots",
                "etc/escape": "->../../../../../../../../" + str(tmp_path / "outside"),
                "etc/loop": "->loop",
                "etc/long": "->/" + "x" * 300,
                "etc/file": "x",
            }
        )
    )
    assert view.resolve("/etc/ssl/certs") == "/etc/pki/tls/certs"
    assert view.resolve("/etc/ssl/certs/ca-bundle.crt") == "/etc/pki/extracted/bundle.pem"
    for path in ("/etc/escape", "/etc/loop", "/etc/long", "/etc/file/x", "/etc/none"):
        assert view.resolve(path) is None, path


def test_the_hash_of_a_subject_is_that_of_openssl(tmp_path):
    authority = make_authority("sb_0123456789abcdef", "")
    (tmp_path / "ca.pem").write_text(authority_pem(authority))
    words = ["openssl", "x509", "-hash", "-noout", "-in", str(tmp_path / "ca.pem")]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert hashed_name() == f"{told}.0"


def test_an_image_gets_the_authority_where_it_keeps_certificates(layers, tmp_path):
    made = layers(
        {
            "etc/ssl/certs/ca-certificates.crt": "roots",
            "etc/ssl/cert.pem": "->certs/ca-certificates.crt",
            "usr/local/share/ca-certificates/mine.crt": "mine",
        },
        {"etc/hostname": "x"},
    )
    authority = make_authority("sb_1", "")
    spec = CellSpec(Image("debian", "layers", layers=tuple(made)))
    cell = tmp_path / "cell"
    cell.mkdir()
    *kept, layer = trusting_image(cell, spec, authority).image.layers
    assert kept == made
    view, mine = LayerView([*made, layer]), authority_pem(authority).encode()
    assert view.read("/etc/ssl/certs/ca-certificates.crt", 10_000) == b"roots\n" + mine
    assert view.resolve("/etc/ssl/cert.pem") == "/etc/ssl/certs/ca-certificates.crt"
    assert view.read(f"/etc/ssl/certs/{hashed_name()}", 10_000) == mine
    assert view.read("/usr/local/share/ca-certificates/sandkasten.crt", 10_000) == mine
    # Nothing else: an image without certificates gets none.
    files = [path for path in (cell / "tls-layer").rglob("*") if path.is_file()]
    assert len(files) == 3


def test_an_image_with_a_directory_in_place_of_the_authority_keeps_it(layers, tmp_path):
    inner = f"etc/ssl/certs/{hashed_name()}/x"
    made = layers({inner: "roots", "etc/ssl/cert.pem": f"->/{inner}"})
    spec = CellSpec(Image("odd", "layers", layers=tuple(made)))
    *_, layer = trusting_image(tmp_path, spec, make_authority("sb_1", "")).image.layers
    found = LayerView([*made, layer]).read(f"/{inner}", 10_000) or b""
    assert found.startswith(b"roots\n-----BEGIN")
