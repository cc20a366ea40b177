"""How Beam's engine on this machine gets its worker processes."""

from __future__ import annotations

import os
import threading
from typing import Any

from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.transforms import environments
from google.protobuf import json_format, text_format

from pipelines import worker

#: Name of the thread that waits for the end of a worker, and raises if it was an early one.
WATCHER = "run_worker"

_URN = "scan_tfrecords:env:local_worker:v1"


@environments.Environment.register_urn(_URN, bytes)
class LocalWorkers(environments.Environment):
    """A Beam environment: processes of `worker`, on this machine."""

    def to_runner_api_parameter(self, context: Any) -> tuple[str, bytes]:
        return _URN, b""

    @staticmethod
    def from_runner_api_parameter(
        payload: bytes, capabilities: Any, artifacts: Any, resource_hints: Any, context: Any
    ) -> LocalWorkers:
        return LocalWorkers(capabilities, artifacts, resource_hints)


@worker_handlers.WorkerHandler.register_environment(_URN, bytes)
class _LocalWorkerHandler(worker_handlers.GrpcWorkerHandler):
    """Starts one worker and waits for its end."""

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)

    def start_worker(self) -> None:
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        settings = {
            "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
            "PIPELINE_OPTIONS": json_format.MessageToJson(
                self.provision_info.provision_info.pipeline_options
            ),
            "WORKER_ID": self.worker_id,
        }
        self._process = worker.start({**os.environ, **settings})
        self._watcher = threading.Thread(name=WATCHER, target=self._watch)
        self._watcher.start()

    def stop_worker(self) -> None:
        self._watcher.join()

    def _watch(self) -> None:
        self._process.join()
        if self._process.exitcode:
            raise RuntimeError(f"exit code {self._process.exitcode}")
