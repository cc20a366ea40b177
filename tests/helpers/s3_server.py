"""An S3 server on loopback (moto) that counts the bytes it has sent and can be made to fail."""

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from tfrecord_io.stores import remote

BUCKET = "scans"
KEY_ID, SECRET_KEY = "AKIDLOOPBACK", "loopback-secret-key-0123"
_REFUSAL = b"""<DeleteResult><Error><Key>kept</Key><Code>AccessDenied</Code>
<Message>Access Denied</Message></Error></DeleteResult>"""


class S3Server:
    """A running server with an empty bucket.

    A fault of an answer is a status, "denied" (a deletion is refused), "cut" (it ends early),
    "short" (a byte is missing), "garbled" (another byte is there) or "silent" (there is none).

    Attributes:
        bytes_sent: those of objects, not of listings.
        written: the keys of objects, as they were written.
        faults: of the next answers, one by one; "" for none.
        fault: of all that follow.
    """

    def __init__(self) -> None:
        from moto.s3.models import s3_backends
        from moto.server import create_backend_app
        from werkzeug.serving import make_server

        self._application = create_backend_app("s3")
        self._stored = s3_backends["123456789012"]["aws"]
        self._stored.create_bucket(BUCKET, "us-east-1")
        self._woken = threading.Event()
        self.bytes_sent, self.written = 0, []
        self.faults, self.fault = deque(), ""
        self.http = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self.http.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a user sets to reach the server."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def put(self, key: str, content: bytes) -> None:
        self._stored.put_object(BUCKET, key, content)

    def put_folder(self, folder: Path, prefix: str) -> str:
        """Puts the files of a folder below a prefix; returns its URL."""
        for path in filter(Path.is_file, folder.iterdir()):
            self.put(f"{prefix}/{path.name}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"

    def read(self, prefix: str) -> dict[str, bytes]:
        """Returns the objects below a prefix, by the rest of their names."""
        stored = self._stored.get_bucket(BUCKET).keys
        return {
            key.removeprefix(prefix): stored[key].value for key in stored if key.startswith(prefix)
        }

    def clear(self) -> None:
        for key in self.read(""):
            self._stored.delete_object(BUCKET, key)

    @contextlib.contextmanager
    def failing(self, fault: str, *, after: int = 0, times: int | None = None) -> Iterator[None]:
        """Has some requests fail until the block ends; without `times`, all after the first."""
        self.faults.extend([""] * after + [fault] * (times or 0))
        self.fault = "" if times else fault
        try:
            yield
        finally:
            self.faults.clear()
            self.fault = ""

    def _answer(self, environ, start_response):
        fault = self.faults.popleft() if self.faults else self.fault
        if fault == "silent":
            self._woken.wait(60)
        if fault == "denied" or fault[:1].isdigit():
            body = _REFUSAL if fault == "denied" else b""
            status = "200 OK" if fault == "denied" else fault
            start_response(status, [("Content-Length", str(len(body)))])
            return [body]
        # What Google's conditions ask of; the generation of an object is its ETag here.
        if seen := environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH"):
            name, seen = ("NONE_MATCH", "*") if seen == "0" else ("MATCH", seen)
            environ[f"HTTP_IF_{name}"] = seen
        answer = {}

        def start(status, headers, _=None):
            answer.update(status=status, headers=dict(headers))

        body = b"".join(self._application(environ, start))
        headers = {name.lower(): value for name, value in answer["headers"].items()}
        if "etag" in headers:
            headers["x-goog-generation"] = headers["etag"].strip('"')
        method, is_listing = environ["REQUEST_METHOD"], "list-type" in environ["QUERY_STRING"]
        if method == "PUT":
            self.written.append(environ["PATH_INFO"])
        if method == "GET":
            body = body[:-1] if fault == "short" else body
            headers["content-length"] = str(len(body))
            if fault == "cut":
                body, headers["connection"] = body[:-1], "close"
            if fault == "garbled" and body:
                body = body[:-1] + bytes([body[-1] ^ 1])
            self.bytes_sent += len(body) * (not is_listing)
        start_response(answer["status"], list(headers.items()))
        return [body]


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
            yield server
        finally:
            server._woken.set()
            server.http.shutdown()
            thread.join()
            server.http.server_close()
            remote.open_store.cache_clear()
