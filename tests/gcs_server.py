"""Google Cloud Storage on loopback, from whichever of two servers is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from unittest import mock

import builds

BUCKET = "scans"

#: Python's `gcp-storage-emulator`, which keeps one version of an object, whatever is asked for,
#: and Go's `fake-gcs-server`, which tells versions apart.
SERVERS = ("gcp-storage-emulator", "fake-gcs-server")


def is_installed(server: str) -> bool:
    """Tells whether a server and Google's client can be used here."""
    if importlib.util.find_spec("google.cloud.storage") is None:
        return False
    if server == "fake-gcs-server":
        return shutil.which(server) is not None
    return importlib.util.find_spec("gcp_storage_emulator") is not None


def how_to_install(server: str) -> str:
    words = "pip install -e '.[stores]'"
    if server == "fake-gcs-server":
        words += " and go install github.com/fsouza/fake-gcs-server@latest"
    return f"{server} is not here; {words}"


@contextlib.contextmanager
def running_gcs(server: str) -> Iterator[None]:
    """Runs a server with an empty bucket; Google's client finds it by its variable."""
    from apache_beam.internal.gcp import auth

    # Anonymous at once: Beam looks for credentials for twenty seconds before it is.
    anonymous = mock.patch.multiple(auth._Credentials, _credentials_init=True, _credentials=None)
    started = _started_program() if server == "fake-gcs-server" else _started_thread()
    with started as address, anonymous:
        variables = {
            "STORAGE_EMULATOR_HOST": address,
            "no_proxy": "127.0.0.1",
            "NO_PROXY": "127.0.0.1",
        }
        with mock.patch.dict(os.environ, variables):
            yield


@contextlib.contextmanager
def _started_thread() -> Iterator[str]:
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        yield f"http://127.0.0.1:{server._api._httpd.server_address[1]}"
    finally:
        server.stop()


@contextlib.contextmanager
def _started_program() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    words = ["fake-gcs-server", "-scheme=http", "-host=127.0.0.1", f"-port={port}"]
    words += ["-backend=memory", f"-public-host=127.0.0.1:{port}", f"-external-url={address}"]
    with subprocess.Popen([*words, "-log-level=error"]) as process:
        try:
            builds.wait_until(lambda: _listens(port), process)
            request = urllib.request.Request(
                f"{address}/storage/v1/b?project=some-project",
                json.dumps({"name": BUCKET}).encode(),
                {"Content-Type": "application/json"},
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=10):
                pass
            yield address
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
