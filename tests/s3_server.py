"""An S3 server on loopback (moto) that counts the bytes it has sent and can be made to fail."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Iterator
from unittest import mock

from pipelines.stores import beam_flags
from tfrecord_io.stores import remote

BUCKET = "scans"
KEY_ID, SECRET_KEY = "AKIDLOOPBACK", "loopback-secret-key-0123"


_REFUSAL = b"""<DeleteResult><Error><Key>kept</Key><Code>AccessDenied</Code>
<Message>Access Denied</Message></Error></DeleteResult>"""


@dataclasses.dataclass
class Faults:
    """What the server does wrong: it cuts so many answers, refuses to delete.

    After some requests it answers others with a status, or with `half` of what it should say.
    """

    answers_to_cut: int = 0
    refuses_deletes: bool = False
    status: str = ""
    requests_before: int = 0
    failing_requests: int = 0

    def next(self) -> str:
        """Returns the status of the next request, `half`, or "" if nothing is wrong with it."""
        self.requests_before -= 1
        if not (self.status and self.requests_before < 0 < self.failing_requests):
            return ""
        self.failing_requests -= 1
        return self.status

    @contextlib.contextmanager
    def on(self, **faults: int | bool | str) -> Iterator[None]:
        """Has a server do some of these until the block ends."""
        vars(self).update(faults)
        try:
            yield
        finally:
            vars(self).update(vars(Faults()))


class S3Server:
    """A running server; `flags` are what a user gives to reach it."""

    def __init__(self, port: int, client: object, sent: list[int], faults: Faults):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.client = client
        self._sent = sent
        self._faults = faults

    @contextlib.contextmanager
    def failing(self, **faults: int | bool | str) -> Iterator[None]:
        """Makes the server do some of its `Faults` until the block ends."""
        with self._faults.on(**faults):
            yield

    def use(self) -> None:
        """Has this process reach the server, as the command does with the flags."""
        beam_flags.use(self.flags)

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

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the objects below a prefix, by the rest of their names."""
        found = {}
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=BUCKET, Prefix=prefix):
            for item in page.get("Contents", []):
                body = self.client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"]
                found[item["Key"].removeprefix(prefix)] = body.read()
        return found

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
    faults = Faults()
    application = DomainDispatcherApplication(create_backend_app)

    def counting(environ, start_response):
        if faults.refuses_deletes and environ["QUERY_STRING"] == "delete":
            start_response("200 OK", [("Content-Length", str(len(_REFUSAL)))])
            yield _REFUSAL
            return
        if status := faults.next():
            if status != "half":
                start_response(status, [("Content-Length", "0")])
                yield b""
                return
            whole = b"".join(application(environ, start_response))
            yield whole[: len(whole) // 2]
            return
        body = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET" or "list-type" in environ["QUERY_STRING"]:
            yield from body
            return
        if faults.answers_to_cut:
            faults.answers_to_cut -= 1
            yield b"".join(body)[:-1]
            return
        for piece in body:
            sent.append(len(piece))
            yield piece

    # A machine's own proxy and credentials are no part of the test; nor do settings outlive it.
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
            yield S3Server(server.port, client, sent, faults)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            remote.forget_stores()
