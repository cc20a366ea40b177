"""Google Cloud Storage on loopback: the XML API, as far as it is that of S3.

object_store speaks this API to Google. The emulators of Google's storage that can be installed
speak the other one (JSON), so moto's S3 server stands in: same paths, ETags, listings and uploads
in parts, but no generations.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

import s3_server

from tfrecord_io.stores import remote

BUCKET = s3_server.BUCKET


@contextlib.contextmanager
def running_gcs() -> Iterator[s3_server.S3Server]:
    """Runs a server with an empty bucket, found by the variable of Google's own tools."""
    with (
        s3_server.running_s3() as server,
        mock.patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": server.endpoint}),
    ):
        remote.forget_stores()
        yield server
