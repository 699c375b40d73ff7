"""Bucket operations against a real S3 service, a folder, and a service that refuses as others do."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from atoll.server.buckets import (
    BucketPlace,
    BucketRefusedError,
    BucketUnavailableError,
    ObjectMissingError,
    open_bucket,
    parse_place,
)
from atoll.server.buckets.bucket import PART_BYTES, Bucket
from tests.object_storage import CREDENTIALS


@pytest.fixture(params=["file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "s3":
        return open_bucket(request.getfixturevalue("s3"))
    return open_bucket(parse_place(f"file://{tmp_path}/bucket"))


def test_objects_are_put_read_listed_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    large = bytes(range(256)) * (PART_BYTES // 256) + b"more"
    (tmp_path / "large").write_bytes(large)
    bucket.put_file("a/large", tmp_path / "large", len(large))
    bucket.put("a/small", b"small")
    bucket.put("b/streamed", (part for part in (b"one", memoryview(b"two"))))
    assert b"".join(bucket.pieces("a/large")) == large
    assert bucket.read("b/streamed") == b"onetwo"
    assert {found.key: found.size_bytes for found in bucket.listed("a")} == {"a/large": len(large), "a/small": 5}
    facts = bucket.facts("a/small")
    assert facts is not None
    assert (facts.key, facts.size_bytes) == ("a/small", 5)
    bucket.delete(["a/small", "a/never", "a/large"])
    bucket.delete([])
    assert list(bucket.listed("a")) == []
    assert bucket.facts("a/small") is None
    for read in (bucket.read, lambda key: b"".join(bucket.pieces(key))):
        with pytest.raises(ObjectMissingError):
            read("a/small")


def test_only_one_creates_an_object(bucket: Bucket) -> None:
    assert bucket.create("marker", b"first")
    assert not bucket.create("marker", b"second")
    assert bucket.read("marker") == b"first"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_may_come_from_the_environment(
    s3: BucketPlace, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bucket(s3).put("key", b"value")
    monkeypatch.setenv(variable, s3.endpoint)
    assert open_bucket(parse_place(s3.url)).read("key") == b"value"


def test_credentials_may_come_from_a_shared_file(
    s3: BucketPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    path.write_text("[federation]\naws_access_key_id = test\naws_secret_access_key = s3cr3t\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    with pytest.raises((BucketRefusedError, BucketUnavailableError)) as refused:
        open_bucket(s3).put("key", b"value")
    assert "s3cr3t" not in str(refused.value.logged)
    monkeypatch.setenv("AWS_PROFILE", "federation")
    open_bucket(s3).put("key", b"value")


def _error(code: str, message: str = "It did not work") -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """A service with one answer to everything; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names that the library calls

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "says", "remedy"),
    [
        (403, _error("AccessDenied", "no write for you"), "AccessDenied: no write for you", "check the credentials"),
        (403, _error("SignatureDoesNotMatch"), "SignatureDoesNotMatch", "check the credentials"),
        (401, _error("Unauthorized"), "Unauthorized", "check the credentials"),
        (301, _error("PermanentRedirect"), "in another region", "blobs_region"),
        (400, _error("AuthorizationHeaderMalformed", "expecting 'eu-west-3'"), "expecting 'eu-west-3'", "blobs_region"),
        (404, _error("NoSuchBucket"), "there is no such bucket", "create it"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str, says: str, remedy: str
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with answering(status, body) as address:
        bucket = open_bucket(parse_place("s3://bucket/prefix", address))
        with pytest.raises(BucketRefusedError, match=says) as refused:
            bucket.put("key", b"value")
    assert remedy in refused.value.detail.remedy
    assert "test-secret" not in refused.value.logged
    assert "/key" not in refused.value.detail.message
    assert refused.value.where == f"s3://bucket/prefix at {address}"


def test_a_service_that_fails_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("atoll.server.buckets.opening._RETRIES", 1)
    with answering(503, _error("SlowDown", "reduce your rate")) as address:
        bucket = open_bucket(parse_place("s3://bucket/prefix", address))
        with pytest.raises(BucketUnavailableError, match="SlowDown: reduce your rate"):
            bucket.put("key", b"value")


def test_without_the_library_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from atoll.server.buckets import BucketRefusedError, open_bucket, parse_place\n"
        "try: open_bucket(parse_place('s3://bucket/prefix'))\n"
        "except BucketRefusedError as error: print(error.detail)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ".[server,object-storage]" in done.stdout


def test_nothing_loads_the_library_before_a_bucket_is_opened() -> None:
    code = "import sys, atoll.server.stores, atoll.server.process.server; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
