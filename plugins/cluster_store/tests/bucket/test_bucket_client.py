"""A bucket as a client sees it: signatures, names, lists, rights, TLS and what `doctor` says."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from plugins.cluster_store.tests.s3_server import BUCKET, FULL, READER
from sandkasten.errors import BackendUnavailable, InternalError, InvalidConfiguration
from sandkasten_cluster_store.bucket.bucket import Bucket
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_cluster_store.bucket.bucket_requirements import bucket_requirements
from sandkasten_cluster_store.bucket.signature_v4 import Request, encoded_query, signed_headers
from sandkasten_runtime.assembly.engine_assembly import open_engine
from sandkasten_runtime.assembly.settings.resolver import load

pytestmark = pytest.mark.promise("P112")
DATA = b"some content"
SHA256 = hashlib.sha256(DATA).hexdigest()


def test_a_signature_is_that_of_the_published_example():
    options = BucketOptions(
        "https://s3.amazonaws.com",
        "examplebucket",
        access_key="AKIAIOSFODNN7EXAMPLE",
        secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )
    query = encoded_query({"prefix": "J", "max-keys": "2"})
    request = Request("GET", "examplebucket.s3.amazonaws.com", "/", query)
    headers = signed_headers(request, options, datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["authorization"].endswith(
        "Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_a_temporary_key_sends_its_token_signed():
    options = BucketOptions("https://h", "b", access_key="a", secret_key="s", session_token="token")
    headers = signed_headers(Request("GET", "h", "/"), options, datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["x-amz-security-token"] == "token"
    assert "x-amz-date;x-amz-security-token," in headers["authorization"]


def test_the_bucket_is_in_the_path_or_in_the_host_name():
    by_path = Bucket(BucketOptions("https://host:9000", "b"))
    by_name = Bucket(BucketOptions("https://host:9000", "b", path_style=False))
    assert (by_path._host, by_path._base) == ("host:9000", "/b")
    assert (by_name._host, by_name._base) == ("b.host:9000", "")


def test_keys_are_not_printed(s3_server):
    shown = repr(s3_server.options(session_token="to-ken"))
    assert FULL["secret_key"] not in shown
    assert FULL["access_key"] not in shown
    assert "to-ken" not in shown


@pytest.mark.parametrize("name", ["t/plain", "t/a b/c+d=e&f", "t/ä~%41"])
async def test_an_object_is_stored_listed_read_and_deleted(s3_server, name):
    async with Bucket(s3_server.options()) as bucket:
        await bucket.put(name, DATA, SHA256)
        assert await bucket.get(name, len(DATA), SHA256) == DATA
        assert [one.name async for one in bucket.list(name)] == [name]
        for _ in range(2):
            await bucket.delete(name)
        assert [one async for one in bucket.list(name)] == []
        with pytest.raises(InternalError, match="is missing in the bucket"):
            await bucket.get(name, len(DATA), SHA256)


async def test_a_long_list_has_every_name_once(s3_server, monkeypatch):
    async with Bucket(s3_server.options()) as bucket:
        names = [f"t/many/{number:02d}" for number in range(7)]
        for name in names:
            await bucket.put(name, b"", hashlib.sha256(b"").hexdigest())
        ask, pages = bucket._ask, []

        async def in_small_pages(method, name, *, query, most):
            pages.append(query)
            return await ask(method, name, query={**query, "max-keys": "3"}, most=most)

        monkeypatch.setattr(bucket, "_ask", in_small_pages)
        assert [one.name async for one in bucket.list("t/many/")] == names
        assert len(pages) == 3
        monkeypatch.undo()
        for name in names:
            await bucket.delete(name)


async def test_doctor_writes_reads_and_deletes_an_object(s3_server):
    lines = await bucket_requirements(s3_server.options())
    assert [one.name for one in lines] == ["bucket", "bucket rights", "bucket TLS"]
    assert all(one.ok for one in lines)
    async with Bucket(s3_server.options()) as bucket:
        assert [one async for one in bucket.list("t/doctor-")] == []


@pytest.mark.parametrize(
    ("options", "state", "remedy"),
    [
        ({"secret_key": "another"}, "SignatureDoesNotMatch", "store.files.secret_key"),
        ({"access_key": "another"}, "InvalidAccessKeyId", "store.files.access_key"),
        ({"bucket": "missing"}, "NoSuchBucket", "create the bucket missing"),
        ({"endpoint": "http://127.0.0.1:1"}, "cannot be reached", "store.files.endpoint"),
    ],
)
async def test_doctor_says_why_a_bucket_cannot_be_used(s3_server, options, state, remedy):
    (line,) = await bucket_requirements(s3_server.options(**options))
    assert (line.name, line.ok, line.required) == ("bucket", False, False)
    assert state in line.state
    assert remedy in line.remedy


async def test_doctor_names_the_missing_rights(s3_server):
    lines = {one.name: one for one in await bucket_requirements(s3_server.options(**READER))}
    rights = lines["bucket rights"]
    assert (rights.ok, rights.state) == (False, "may not write, delete")
    assert "s3:PutObject" in rights.remedy


async def test_the_certificate_of_the_server_is_checked(s3_server, tmp_path):
    trusted = s3_server.options(endpoint=s3_server.tls_url, ca_file=s3_server.authority)
    async with Bucket(trusted) as bucket:
        await bucket.put("t/tls", DATA, SHA256)
        await bucket.delete("t/tls")
    assert (await bucket_requirements(trusted))[2].state == "the server is checked"
    async with Bucket(s3_server.options(endpoint=s3_server.tls_url)) as bucket:
        with pytest.raises(BackendUnavailable, match="not trusted") as caught:
            await bucket.put("t/tls", DATA, SHA256)
        assert "store.files.ca_file" in caught.value.hint
    async with Bucket(s3_server.options(ca_file=tmp_path / "missing")) as bucket:
        with pytest.raises(InvalidConfiguration, match="cannot be read"):
            await bucket.put("t/tls", DATA, SHA256)


async def test_a_bucket_that_is_away_is_a_warning_of_doctor(postgres_server, s3_server, tmp_path):
    """Sandboxes work without stored files."""
    flags = {
        "data_dir": str(tmp_path / "data"),
        "backend": "unisolated",
        "store.url": postgres_server.url,
        "store.files.bucket": BUCKET,
        "store.files.access_key": FULL["access_key"],
        "store.files.secret_key": FULL["secret_key"],
    }
    for endpoint, good in ((s3_server.url, True), ("http://127.0.0.1:1", False)):
        settings = load({**flags, "store.files.endpoint": endpoint}, {}, tmp_path)
        engine = await open_engine(settings)
        try:
            found = await engine.probe()
        finally:
            await engine.aclose()
        lines = {one.name: one.ok for one in found.requirements}
        assert (found.ready, lines["database"], lines["bucket"]) == (True, True, good)
