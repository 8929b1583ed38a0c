"""Secrets on Docker Engines that we cannot enter, and where they are refused."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

# Here, where no event loop waits for it.
import aiodocker  # noqa: F401
import pytest

from sandkasten import Sandbox, Secrets
from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.access.stored_secrets import OpenSecret, Secret
from sandkasten.model.ids import new_sandbox_id
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.inspection import Inspection
from sandkasten.model.sandbox.network_policy import NetworkPolicy
from sandkasten_docker import container_network, unsupported
from sandkasten_docker.backend import DockerBackend
from sandkasten_docker.docker_engine.docker_address import address_of
from sandkasten_docker.docker_options import DockerOptions
from sandkasten_docker.egress_containers import EgressContainers
from sandkasten_docker.session_volumes import SessionVolumes
from tests.engines import lent, seen, stock
from tests.network.conftest import served
from tests.network.tls_api import PART, VALUE, Api

# How a private key begins, as PEM and as base64 alone.
KEY = ("PRIVATE KEY", "MIGHAgEAMBMG")
BEARER = "Authorization: Bearer {value}"


@pytest.mark.root
@pytest.mark.promise("P77")
@pytest.mark.long(reason="`make test` has it for an engine on this machine")
def test_a_remote_engine_never_shows_a_secret(certificates, tmp_path, monkeypatch):
    """Created by a process that is killed at once; another one goes on with the sandbox."""
    far = lent.engine("remote", stock.PROGRAMS)
    own_address = str(ipaddress.ip_address(urlsplit(far.host).hostname or "") - 1)
    authority, chain = certificates
    place = str(tmp_path / "data")
    for name, value in {
        "DOCKER_HOST": far.host,
        "DOCKER_CERT_PATH": far.certificates,
        "DEFAULT_IMAGE": stock.reference(stock.PROGRAMS),
        "NETWORK_REACHABLE": own_address,
        "NETWORK_HOSTS": f"good.test={own_address}",
        "NETWORK_CA_FILES": str(authority),
    }.items():
        monkeypatch.setenv(f"SANDKASTEN_{name}", value)
    secrets = Secrets(data_dir=place)
    stored = secrets.set("TOKEN", VALUE, hosts="good.test", header=BEARER)
    network = {"allow": ["good.test"], "secrets": ["TOKEN"]}
    script = (
        "import time\nfrom sandkasten import Sandbox\n"
        f"box = Sandbox(backend='docker', network={network!r}, data_dir={place!r})\n"
        "print(box.id, flush=True)\n"
        "time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as creator:
        assert creator.stdout is not None
        the_id = creator.stdout.readline().strip()
        creator.kill()
    box = Sandbox.attach(the_id, data_dir=place)
    try:
        with served(Api(chain, own_address)) as port:
            ask = f"curl -sS -m 10 https://good.test:{port}/user"
            assert box.exec(ask).output == "hello\n"
            secrets.set("TOKEN", "another-value", hosts="good.test", header=BEARER)
            box.update(network=network)
            assert box.exec(ask).output == "who are you\n"
        assert box.exec("echo $TOKEN").output.strip() == stored.placeholder
        assert box.exec("touch /opt/sandkasten/tls/ca.pem").exit_code != 0
        visible = seen.told(far, the_id)
        assert all(name in visible for name in (f"{the_id}-egress", f"{the_id}-inside", "ca.pem"))
        assert stored.placeholder in visible
        for value in (PART, "another-value", *KEY):
            assert value not in visible
        # The engines of tests share this machine's kernel.
        beside = Path(f"/proc/{seen.first_process(far, f'{the_id}-egress')}")
        for name in ("environ", "cmdline"):
            assert PART.encode() not in (beside / name).read_bytes()
        assert "Max core file size        0" in (beside / "limits").read_text()
    finally:
        box.close()
    assert seen.things(far, the_id) == []


async def test_an_engine_without_tls_gets_no_secrets(tmp_path):
    """They could be read on the way to it. It is not asked at all: this address answers nothing."""
    for host in ("unix:///run/docker.sock", "tcp://127.0.0.1:2375", "ssh://user@far.test"):
        assert container_network.inspection_refusal(address_of(DockerOptions(host=host))) is None
    safe = DockerOptions(host="tcp://far.test", tls_ca="/ca", tls_cert="/cert", tls_key="/key")
    assert container_network.inspection_refusal(address_of(safe)) is None
    for plain in (
        DockerOptions(host="tcp://docker:2375", insecure=True),
        DockerOptions(host="tcp://docker:2375", mode="sidecar"),
    ):
        refused = container_network.inspection_refusal(address_of(plain))
        assert refused is not None
        assert "without TLS" in refused.message
        assert "give backends.docker.tls_ca, tls_cert and tls_key (or cert_path)" in refused.hint
    backend = DockerBackend(tmp_path, DockerOptions(host="tcp://192.0.2.1", insecure=True))
    image, the_id = Image("any", "engine"), new_sandbox_id()
    spec = CellSpec(image, network=NetworkPolicy(full=True), inspection=Inspection(all=True))
    with pytest.raises(UnsupportedByBackend, match="without TLS"):
        await backend.create(the_id, spec)
    stored = Secret("TOKEN", ("good.test",), "holder", 0.0, 0.0, header=BEARER)
    changed = Inspection(all=False, secrets=(OpenSecret(stored, VALUE),))
    with pytest.raises(UnsupportedByBackend, match="without TLS"):
        await EgressContainers(backend._api, the_id).change(spec.network, (), changed)
    await backend.aclose()


def test_an_image_with_a_volume_over_the_certificates_is_refused():
    place = SessionVolumes("volume", "")
    bare = CellSpec(image=Image("odd", "engine"))
    spec = CellSpec(image=Image("odd", "engine"), inspection=Inspection(all=True))
    for path in ("/opt", "/opt/sandkasten/tls", "/opt/sandkasten/tls/more"):
        unsupported.check_volumes(bare, place, [path], "backends.docker")
        with pytest.raises(UnsupportedByBackend, match=f"a volume at {path}, where"):
            unsupported.check_volumes(spec, place, [path], "backends.docker")
    others = ["/opt/sandkasten-other", "/data"]
    unsupported.check_volumes(spec, place, others, "backends.docker")
