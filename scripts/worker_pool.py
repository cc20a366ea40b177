"""Beam's worker pool, listening only on this machine's loopback address.

    python scripts/worker_pool.py --port 50000

It starts a Python worker whenever an engine on this machine asks for one
(`--environment_type=EXTERNAL --environment_config=localhost:50000`). A worker runs the code that it
receives, without authentication. Beam's own command (`worker_pool_main`) listens on all addresses,
so anyone who reaches the port can run code; this one cannot be reached from other machines.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from concurrent import futures
from pathlib import Path

import grpc
import psutil
from apache_beam.portability.api import beam_fn_api_pb2_grpc
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

_NUM_THREADS = 16


def serve(port: int) -> None:
    """Starts workers on demand until the process ends; the workers end with it.

    Args:
        port: port on the loopback address.

    Raises:
        RuntimeError: if another program listens on the port.
    """
    # Beam starts its workers as `python`, which must be this interpreter.
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    server = grpc.server(
        futures.ThreadPoolExecutor(_NUM_THREADS), options=[("grpc.so_reuseport", 0)]
    )
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
        BeamFnExternalWorkerPoolServicer(use_process=True), server
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    atexit.register(_end_workers)
    server.start()
    server.wait_for_termination()


def _end_workers() -> None:
    for child in psutil.Process().children(recursive=True):
        child.kill()


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    try:
        serve(parser.parse_args().port)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
