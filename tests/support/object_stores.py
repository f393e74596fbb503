"""An S3 server on loopback (from moto) and URLs on it, for tests of shards in object stores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Ignore this machine's own AWS configuration.
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "sweeps"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with one bucket, and yield the environment variables that connect S3 libraries to it."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id="testing",
        aws_secret_access_key="not-a-secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    try:
        yield environment
    finally:
        server.stop()


@pytest.fixture(scope="module")
def s3_environment():
    with s3_server() as environment:
        yield environment


@pytest.fixture
def s3(s3_environment, monkeypatch):
    import s3fs

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3fs.S3FileSystem(use_listings_cache=False)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3_url(s3, tmp_path):
    return f"s3://{BUCKET}/{tmp_path.name}"
