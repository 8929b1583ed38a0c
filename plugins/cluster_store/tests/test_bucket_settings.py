"""`store.url`, which makes the store active, and `store.files.*`: a bucket for stored files, with
keys that are never shown.
"""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_cluster_store.bucket.bucket_options import BucketOptions
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.store_catalog import active_store

pytestmark = pytest.mark.promise("P112")
FILE = """
store:
  url: postgresql://me@localhost/db
  files:
    endpoint: https://s3.example.com/
    bucket: things
    prefix: team/files
    region: eu-central-1
    path_style: false
"""
KEYS = {"AWS_ACCESS_KEY_ID": "key-id", "AWS_SECRET_ACCESS_KEY": "s3cret/key"}
GOOD = {
    "store.url": "postgresql://me@localhost/db",
    "store.files.endpoint": "https://s3.example.com",
    "store.files.bucket": "things",
}


def test_the_url_makes_the_store_active(tmp_path):
    assert active_store(load({}, {}, tmp_path)) is None
    plugin = active_store(load({"store.url": GOOD["store.url"]}, {}, tmp_path))
    assert plugin is not None
    assert plugin.name == "postgres"


def test_without_an_endpoint_there_is_no_bucket(tmp_path):
    assert not load({}, KEYS, tmp_path).of(BucketOptions).is_set


def test_a_bucket_is_read_from_the_file_and_its_keys_are_never_shown(tmp_path):
    (tmp_path / "sandkasten.yaml").write_text(FILE)
    environ = {**KEYS, "AWS_SESSION_TOKEN": "t0ken"}
    settings = load({}, environ, tmp_path)
    found = settings.of(BucketOptions)
    assert found is not None
    assert (found.endpoint, found.location) == ("https://s3.example.com", "s3://things/team/files/")
    assert (found.region, found.path_style, found.min_bytes) == ("eu-central-1", False, 262_144)
    assert (found.access_key, found.secret_key) == ("key-id", "s3cret/key")
    assert found.session_token == "t0ken"
    shown = repr([one for one in settings.origins() if one.name.startswith("store.files")])
    for secret in ("key-id", "s3cret", "t0ken"):
        assert secret not in shown + repr(settings)


def test_the_secret_key_may_be_in_a_file_that_others_cannot_read(tmp_path):
    file = tmp_path / "key"
    file.write_text("from-the-file\n")
    flags = {**GOOD, "store.files.access_key": "a", "store.files.secret_key_file": str(file)}
    file.chmod(0o644)
    with pytest.raises(InvalidConfiguration, match="accessible to every user"):
        load(flags, {}, tmp_path)
    file.chmod(0o600)
    found = load(flags, {}, tmp_path).of(BucketOptions)
    assert found is not None
    assert found.secret_key == "from-the-file"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"store.files.endpoint": "http://s3.example.com"}, "without encryption"),
        ({"store.files.endpoint": "https://me:pass@s3.example.com"}, "a host and a port only"),
        ({"store.files.endpoint": "https://s3.example.com/bucket"}, "a host and a port only"),
        ({"store.files.endpoint": "s3.example.com"}, "must be the http"),
        ({"store.files.bucket": "a/b"}, "the name of a bucket"),
        ({"store.files.prefix": "../x"}, "the beginning of object names"),
        ({"store.files.region": "a b"}, "the name of a region"),
        ({"store.files.min_bytes": "5000000"}, "at most 4194304"),
        ({"store.files.access_key": "with space"}, "without spaces"),
    ],
)
def test_an_unusable_bucket_is_refused_by_name(tmp_path, flags, message):
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        load({**GOOD, **flags}, KEYS, tmp_path)
    assert caught.value.details["setting"] in flags
    assert "pass" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("store.url", "store.files.bucket"),
        ("store.files.endpoint", "store.files.endpoint"),
        ("store.files.bucket", "store.files.bucket"),
    ],
)
def test_an_incomplete_bucket_is_refused(tmp_path, missing, named):
    flags = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(InvalidConfiguration) as caught:
        load(flags, KEYS, tmp_path)
    assert caught.value.details["setting"] == named
    assert caught.value.hint


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_bucket_requires_keys(tmp_path, missing):
    environ = {name: value for name, value in KEYS.items() if name != missing}
    with pytest.raises(InvalidConfiguration, match="requires access_key and secret_key"):
        load(GOOD, environ, tmp_path)


def test_http_is_allowed_on_this_machine_or_if_it_is_requested(tmp_path):
    for flags in (
        {"store.files.endpoint": "http://127.0.0.1:9000"},
        {"store.files.endpoint": "http://[::1]:9000"},
        {"store.files.endpoint": "http://minio:9000", "store.files.insecure": "true"},
    ):
        assert load({**GOOD, **flags}, KEYS, tmp_path).of(BucketOptions).is_set
