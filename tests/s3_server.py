"""An S3 server on loopback (moto), with a count of the bytes it has sent."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from unittest import mock

BUCKET = "scans"
KEY_ID, SECRET_KEY = "AKIDLOOPBACK", "loopback-secret-key-0123"


class S3Server:
    """A running server; `flags` are what a user gives Beam to reach it."""

    def __init__(self, port: int, client: object, sent: list[int]):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.client = client
        self._sent = sent

    @property
    def flags(self) -> list[str]:
        return [
            f"--s3_endpoint_url={self.endpoint}",
            f"--s3_access_key_id={KEY_ID}",
            f"--s3_secret_access_key={SECRET_KEY}",
            "--s3_region_name=us-east-1",
        ]

    @property
    def bytes_sent(self) -> int:
        """Bytes of objects that were sent; listings are not counted."""
        return sum(self._sent)

    def forget(self) -> None:
        self._sent.clear()

    def object_names(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return [item["Key"] for item in found]


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    """Runs the server in threads of this process, on loopback; an empty bucket is there."""
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    sent: list[int] = []
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ, start_response):
        body = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET" or "list-type" in environ["QUERY_STRING"]:
            yield from body
            return
        for piece in body:
            sent.append(len(piece))
            yield piece

    # A machine's own proxy and credentials are no part of the test.
    with mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It logs every request.
        server = make_server("127.0.0.1", 0, counting, threaded=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            client = boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{server.port}",
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=SECRET_KEY,
                region_name="us-east-1",
            )
            client.create_bucket(Bucket=BUCKET)
            yield S3Server(server.port, client, sent)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
