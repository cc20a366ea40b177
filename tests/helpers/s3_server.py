"""An S3 server on loopback (moto) that counts the bytes it has sent and can be made to fail."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from unittest import mock

from web_server import Faulty

from tfrecord_io.stores import remote

BUCKET = "scans"
KEY_ID, SECRET_KEY = "AKIDLOOPBACK", "loopback-secret-key-0123"
_REFUSAL = b"""<DeleteResult><Error><Key>kept</Key><Code>AccessDenied</Code>
<Message>Access Denied</Message></Error></DeleteResult>"""


class S3Server(Faulty):
    """A running server with an empty bucket.

    `bytes_sent` counts the bytes of objects, and not those of listings.
    Of the faults it knows a status, and "denied", which refuses a deletion.
    """

    def __init__(self) -> None:
        import boto3
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        super().__init__()
        self._application = DomainDispatcherApplication(create_backend_app)
        self.bytes_sent = 0
        self.http = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self.http.port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a user sets to reach the server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the objects below a prefix, by the rest of their names."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return {
            key.removeprefix(prefix): self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            for key in (item["Key"] for item in found)
        }

    def _answer(self, environ, start_response):
        fault = self.next_fault()
        if fault == "denied":
            start_response("200 OK", [("Content-Length", str(len(_REFUSAL)))])
            yield _REFUSAL
            return
        if fault[:1].isdigit():
            start_response(fault, [("Content-Length", "0")])
            yield b""
            return
        # What Google's conditions ask of; the generation of an object is its ETag here.
        if seen := environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH"):
            name, seen = ("NONE_MATCH", "*") if seen == "0" else ("MATCH", seen)
            environ[f"HTTP_IF_{name}"] = seen

        def start(status, headers):
            tags = [value.strip('"') for name, value in headers if name.lower() == "etag"]
            return start_response(status, headers + [("x-goog-generation", tag) for tag in tags])

        body = self._application(environ, start)
        is_read = environ["REQUEST_METHOD"] == "GET" and "list-type" not in environ["QUERY_STRING"]
        for piece in body:
            self.bytes_sent += len(piece) * is_read
            yield piece


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    """Runs the server in threads of this process, on loopback."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # It logs every request.
    # A machine's own proxy and credentials are no part of the test; nor do settings outlive it.
    with mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}):
        server = S3Server()
        thread = threading.Thread(target=server.http.serve_forever, args=(0.02,))
        thread.start()
        try:
            server.client.create_bucket(Bucket=BUCKET)
            yield server
        finally:
            server.http.shutdown()
            thread.join()
            server.http.server_close()
            remote.forget_stores()


@contextlib.contextmanager
def running_gcs() -> Iterator[S3Server]:
    """Runs Google Cloud Storage on loopback: its XML API, as far as it is that of S3.

    object_store speaks this API to Google. The emulators of Google's storage that can be installed
    speak the other one (JSON).
    """
    with (
        running_s3() as server,
        mock.patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": server.endpoint}),
    ):
        remote.forget_stores()
        yield server
