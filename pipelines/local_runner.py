"""Beam's engine on this machine, but a worker that is done early gets more to do."""

from __future__ import annotations

import collections
import copy
import itertools
import threading
from collections.abc import Mapping
from concurrent import futures
from typing import Any

from apache_beam.metrics import monitoring_infos
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.fn_api_runner.execution import BundleContextManager
from apache_beam.utils import thread_pool_executor

#: Into how many parts a stage's input is cut at most; more would be cheap, and of no use.
_MAX_PARTS = 4096


class LocalRunner(fn_runner.FnApiRunner):
    """Deals the elements of a stage out while it runs.

    Beam's engine deals before: with two workers each gets every second element, and the one on the
    slower core, or with the larger shards, keeps the other waiting for seconds at the end.
    """

    def _get_bundle_manager(self, bundle_context_manager: BundleContextManager) -> Any:
        manager = super()._get_bundle_manager(bundle_context_manager)
        if isinstance(manager, fn_runner.ParallelBundleManager):
            return _DealingBundleManager(
                bundle_context_manager, self._progress_frequency, manager._cache_token_generator
            )
        return manager


class _DealingBundleManager(fn_runner.ParallelBundleManager):
    """Runs a stage as many bundles, one at a time on each worker, large ones first."""

    def process_bundle(
        self,
        inputs: Mapping[str, Any],
        expected_outputs: Any,
        fired_timers: Any,
        expected_output_timers: Any,
        dry_run: bool = False,
    ) -> tuple[beam_fn_api_pb2.InstructionResponse, list[Any]]:
        if fired_timers or len(inputs) != 1:
            return super().process_bundle(
                inputs, expected_outputs, fired_timers, expected_output_timers, dry_run
            )
        ((name, elements),) = inputs.items()
        parts = _Parts([part for part in elements.partition(_MAX_PARTS) if any(part)])

        def serve(worker_handler: Any) -> list[beam_fn_api_pb2.InstructionResponse]:
            """Runs bundles on one worker until there is nothing left."""
            context = copy.copy(self.bundle_context_manager)
            context._worker_handlers = [worker_handler]
            results = []
            try:
                while (part := parts.take(self._num_workers)) is not None:
                    bundle = fn_runner.BundleManager(
                        context,
                        self._progress_frequency,
                        cache_token_generator=self._cache_token_generator,
                    )
                    result, _ = bundle.process_bundle(
                        {name: part}, expected_outputs, {}, expected_output_timers, dry_run
                    )
                    results.append(result)
            except BaseException:
                parts.clear()
                raise
            return results

        # Both are made when they are first asked for, which one thread must do.
        handlers = self.bundle_context_manager.worker_handlers
        _ = self.bundle_context_manager.process_bundle_descriptor
        # Beam's own threads, for which a program that is stopped does not wait.
        executor = thread_pool_executor.shared_unbounded_instance()
        serving = [executor.submit(serve, handler) for handler in handlers]
        ended, _ = futures.wait(serving, return_when=futures.FIRST_EXCEPTION)
        return _merge([result for worker in ended for result in worker.result()]), []


class _Parts:
    """A stage's input, taken by the workers in pieces that become smaller towards the end.

    A worker waits for the disk at the end of a bundle, so the first ones are large; and all should
    end at the same time, so the last are single elements. This is guided self-scheduling
    (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987), but each takes an
    eighth of its share of what is left: the first elements may be much larger than the rest.
    """

    def __init__(self, parts: list[list[bytes]]) -> None:
        # A stage without input is run, too, once.
        self._left = collections.deque(parts or [[]])
        self._lock = threading.Lock()

    def take(self, num_workers: int) -> list[bytes] | None:
        """Returns the input of the next bundle, or None if there is no more."""
        with self._lock:
            if not self._left:
                return None
            num_parts = -(-len(self._left) // (8 * num_workers))
            return [data for _ in range(num_parts) for data in self._left.popleft()]

    def clear(self) -> None:
        """Lets the workers end, because one of them failed."""
        with self._lock:
            self._left.clear()


def _merge(
    results: list[beam_fn_api_pb2.InstructionResponse],
) -> beam_fn_api_pb2.InstructionResponse:
    """Returns the response of one bundle that stands for all."""
    infos = (result.process_bundle.monitoring_infos for result in results)
    return beam_fn_api_pb2.InstructionResponse(
        process_bundle=beam_fn_api_pb2.ProcessBundleResponse(
            monitoring_infos=monitoring_infos.consolidate(itertools.chain.from_iterable(infos))
        )
    )
