from __future__ import annotations

from uuid import uuid4

import pytest

from rmq_spark.errors import InvalidRequestError, OutcomeUnknownError, UnavailableError, UnsafeStorageError
from rmq_spark.storage.object_store import ObjectStorage
from rmq_spark.storage.open import open_storage
from rmq_spark.testing.storage_conformance import StorageConformance

pytestmark = pytest.mark.server


@pytest.fixture
def uri(s3_uri: str) -> str:
    return f"{s3_uri}/test-{uuid4().hex}"


class TestS3(StorageConformance):
    @pytest.fixture
    def storage(self, uri: str, s3_options: dict[str, str]) -> ObjectStorage:
        return ObjectStorage(uri, options=s3_options)

    @pytest.fixture
    def second_handle(self, uri: str, s3_options: dict[str, str]) -> ObjectStorage:
        return ObjectStorage(uri, options=s3_options)


class TestS3AtTheRootOfABucket(StorageConformance):
    """A store without a prefix sees paths as they are; one pass over the same promises."""

    @pytest.fixture
    def bucket(self, s3_options: dict[str, str]) -> str:
        from rmq_spark.testing.servers import create_bucket

        name = f"rmq-{uuid4().hex}"
        create_bucket(s3_options, name)
        return name

    @pytest.fixture
    def storage(self, bucket: str, s3_options: dict[str, str]) -> ObjectStorage:
        return ObjectStorage(f"s3://{bucket}", options=s3_options)

    @pytest.fixture
    def second_handle(self, bucket: str, s3_options: dict[str, str]) -> ObjectStorage:
        return ObjectStorage(f"s3://{bucket}/", options=s3_options)


def test_options_in_the_uri(uri: str, s3_options: dict[str, str]) -> None:
    query = "&".join(f"{key}={value}" for key, value in s3_options.items())
    storage = open_storage(f"{uri}?{query}")
    storage.create_if_absent("d/x", [b"1"])
    assert ObjectStorage(uri, options=s3_options).read("d/x") == b"1"
    assert "secret" not in storage.uri
    assert "endpoint=" in storage.uri


def test_the_names_fsspec_users_know(uri: str, s3_options: dict[str, str]) -> None:
    options = {
        "endpoint_url": s3_options["endpoint"],
        "key": s3_options["access_key_id"],
        "secret": s3_options["secret_access_key"],
        "region": "us-east-1",
        "allow_http": "true",
    }
    ObjectStorage(uri, options=options).create_if_absent("d/x", [b"1"])
    assert ObjectStorage(uri, options=s3_options).read("d/x") == b"1"


def test_a_tail_without_suffix_ranges(uri: str, s3_options: dict[str, str]) -> None:
    storage = ObjectStorage(uri, options=s3_options)
    storage._suffix_ranges = False  # as on Azure
    storage.create_if_absent("d/t", [b"0123456789"])
    for length in (0, 3, 10, 99):
        assert storage.read_tail("d/t", length) == (b"0123456789"[max(0, 10 - length) :], 10)


def test_a_bucket_that_does_not_exist(s3_options: dict[str, str]) -> None:
    storage = ObjectStorage(f"s3://no-{uuid4().hex}/x", options=s3_options)
    with pytest.raises(UnavailableError, match="bucket"):
        storage.create_if_absent("d/x", [b"1"])


def test_a_store_told_not_to_use_conditions_is_unsafe(uri: str, s3_options: dict[str, str]) -> None:
    storage = ObjectStorage(uri, options={**s3_options, "conditional_put": "disabled"})
    with pytest.raises(UnsafeStorageError):
        storage.create_if_absent("d/x", [b"1"])


def test_an_unreachable_endpoint_is_certain() -> None:
    options = {
        "endpoint": "http://127.0.0.1:1",
        "region": "x",
        "access_key_id": "x",
        "secret_access_key": "x",
        "allow_http": "true",
    }
    storage = ObjectStorage("s3://bucket/x", options=options, deadline_s=0)
    # Reads are retried by the library for a while; here one look is enough.
    storage._store = storage._create_store
    with pytest.raises(UnavailableError) as failed:
        storage.create_if_absent("d/x", [b"1"])
    assert not isinstance(failed.value, OutcomeUnknownError)
    with pytest.raises(UnavailableError):
        storage.read("d/x")


@pytest.mark.parametrize("method", ["read", "exists", "delete"])
def test_paths_outside_are_refused(uri: str, s3_options: dict[str, str], method: str) -> None:
    with pytest.raises(InvalidRequestError):
        getattr(ObjectStorage(uri, options=s3_options), method)("../x")
