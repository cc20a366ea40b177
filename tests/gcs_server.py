"""A Google Cloud Storage server on loopback (gcp-storage-emulator from PyPI)."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from unittest import mock

BUCKET = "scans"


@contextlib.contextmanager
def running_gcs() -> Iterator[None]:
    """Runs the server in a thread of this process; Google's client finds it by its variable."""
    from apache_beam.internal.gcp import auth
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    port = server._api._httpd.server_address[1]
    variables = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }
    # Anonymous at once: Beam looks for credentials for twenty seconds before it is.
    anonymous = mock.patch.multiple(auth._Credentials, _credentials_init=True, _credentials=None)
    with mock.patch.dict(os.environ, variables), anonymous:
        try:
            yield
        finally:
            server.stop()
