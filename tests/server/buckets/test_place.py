import pytest

from atoll.server.buckets import parse_place
from atoll.server.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("file:///mnt/shared", "file:///mnt/shared"),
    ],
)
def test_places(url: str, whole: str) -> None:
    assert parse_place(url).url == whole


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("", "names no object store"),
        ("bucket/prefix", "names no object store"),
        ("http://bucket/prefix", "names no object store"),
        ("s3:///prefix", "names no bucket"),
        ("file://host/prefix", "names no bucket, or no absolute path"),
        ("file://", "names no bucket"),
        ("s3://bucket/../x", "the prefix of"),
        ("s3://bucket/a b", "the prefix of"),
        ("s3://bucket/x#y", "the prefix of"),
        ("s3://[::1/x", "cannot be read"),
    ],
)
def test_what_names_no_place(url: str, names: str) -> None:
    with pytest.raises(InvalidRequestError, match=names) as refused:
        parse_place(url)
    assert "s3://bucket/prefix" in refused.value.detail.remedy


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://bucket/x?token=secret"])
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="URLs are written to files") as refused:
        parse_place(url)
    assert "secret" not in str(refused.value.detail)
    with pytest.raises(InvalidRequestError, match="URLs are written to files") as refused:
        parse_place("s3://bucket/x", url.replace("s3://", "https://"))
    assert "secret" not in str(refused.value.detail)


def test_an_endpoint_is_a_url() -> None:
    assert parse_place("s3://b/x", "http://127.0.0.1:9000/").endpoint == "http://127.0.0.1:9000"
    for endpoint in ("127.0.0.1:9000", "http://[::1:9000"):
        with pytest.raises(InvalidRequestError, match=r"is not a URL|cannot be read"):
            parse_place("s3://b/x", endpoint)
