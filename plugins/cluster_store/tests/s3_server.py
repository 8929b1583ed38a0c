"""A private S3 server, SeaweedFS, with an empty bucket, removed at the end.

`FULL` may do everything, `READER` may read and list. On the loopback, without TLS and with it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_cluster_store.bucket.signature_v4 import Request, signed_headers
from tests import environments
from tests.hostwatch import loopwatch
from tests.loopback_port import free_port
from tests.patience import PATIENCE_S

BUCKET = "files"
FULL = {"access_key": "AKFULLFULLFULL", "secret_key": "full/secret+key=0123456789"}
READER = {"access_key": "AKREADREADREAD", "secret_key": "reader/secret+key=0123456789"}
_PORTS = ("master", "volume", "filer", "s3")
_OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
_OPENSSL += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]


class S3Server:
    """`with S3Server() as server:`."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="sks3-", dir="/var/tmp"))
        self._ports = {name: free_port() for name in (*_PORTS, *(f"{one}.grpc" for one in _PORTS))}
        self.port = self._ports["s3"]
        self.tls_port = free_port()
        self.authority = self.place / "ca.pem"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"https://localhost:{self.tls_port}"

    def options(self, **other: Any) -> BucketOptions:
        values = {"endpoint": self.url, "bucket": BUCKET, "prefix": "t/", **FULL, "timeout_s": 20.0}
        return BucketOptions(**{**values, **other})

    @loopwatch.of_the_test
    def __enter__(self) -> S3Server:
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    @loopwatch.of_the_test
    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.place, ignore_errors=True)

    def _make(self) -> None:
        identities = [
            {"name": "full", "credentials": [_credentials(FULL)], "actions": ["Admin"]},
            {
                "name": "reader",
                "credentials": [_credentials(READER)],
                "actions": [f"Read:{BUCKET}", f"List:{BUCKET}"],
            },
        ]
        (self.place / "identities.json").write_text(json.dumps({"identities": identities}))
        words = [*_OPENSSL, "-keyout", str(self.place / "key.pem"), "-out", str(self.authority)]
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)

    def start(self) -> None:
        """Start the server and wait until the bucket can be written."""
        place = self.place
        words = [str(environments.s3_server()), f"-logdir={place}", "server", "-filer", "-s3"]
        words += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={place}", "-volume.max=50"]
        words += ["-master.volumeSizeLimitMB=64", "-master.telemetry=false"]
        words += ["-volume.preStopSeconds=0", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        words += ["-s3.autoCreateBucket=false"]
        for name, port in self._ports.items():
            kind, _, grpc = name.partition(".")
            words.append(f"-{kind}.port{'.' + grpc if grpc else ''}={port}")
        words += [f"-filer.localSocket={place}/filer.sock", f"-s3.localSocket={place}/s3.sock"]
        words += [f"-s3.config={place}/identities.json", f"-s3.port.https={self.tls_port}"]
        words += [f"-s3.cert.file={self.authority}", f"-s3.key.file={place}/key.pem"]
        with (place / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=place)
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready():
            assert self._process.poll() is None, (place / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (place / "log").read_text()[-2000:]
            time.sleep(0.05)

    def _ready(self) -> bool:
        """Return whether the bucket exists and can be written; create it if it is missing."""
        try:
            ready = self._put(f"/{BUCKET}", b"") in (200, 409)
            return ready and self._put(f"/{BUCKET}/ready", b"x") == 200
        except OSError:
            return False

    def _put(self, path: str, data: bytes) -> int:
        digest = hashlib.sha256(data).hexdigest()
        request = Request("PUT", f"127.0.0.1:{self.port}", path, sha256=digest)
        headers = signed_headers(request, self.options(), datetime.now(UTC))
        ask = urllib.request.Request(self.url + path, data, headers, method="PUT")
        try:
            with urllib.request.urlopen(ask, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            exc.close()
            return exc.code

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(PATIENCE_S)
        for name in _PORTS:
            socket = f"/tmp/seaweedfs-{name}-grpc-{self._ports[f'{name}.grpc']}.sock"
            Path(socket).unlink(missing_ok=True)


def _credentials(keys: dict[str, str]) -> dict[str, str]:
    return {"accessKey": keys["access_key"], "secretKey": keys["secret_key"]}
