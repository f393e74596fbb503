"""An S3 server on loopback (moto's), and places for shards on it, for the tests of object stores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Whatever else this machine knows of AWS stays out of the tests.
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
BUCKET = "sweeps"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with one bucket; yield the environment in which libraries find it."""
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
