import itertools
import time

import apache_beam as beam
import hypothesis.strategies as st
import pytest
from apache_beam.metrics import Metrics
from hypothesis import given

from pipelines import local_runner
from pipelines.running import engine

TWO_WORKERS = ["--direct_num_workers=2"]


class _LeaveFile(beam.DoFn):
    """Leaves a file for each element; the first element waits for the files of all others."""

    def __init__(self, folder, num_elements):
        self._folder, self._num_elements = folder, num_elements

    def process(self, element):
        Metrics.counter("test", "elements").inc()
        deadline = time.monotonic() + 60
        while element == 0 and len(list(self._folder.iterdir())) < self._num_elements - 1:
            if time.monotonic() > deadline:
                raise RuntimeError("some elements wait for the worker that waits for them")
            time.sleep(0.01)
        (self._folder / str(element)).touch()
        yield element, None


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """What a pipeline left whose first element takes as long as all others."""
    folder = tmp_path_factory.mktemp("dealt")
    with engine.make_pipeline(TWO_WORKERS) as pipeline:
        _ = (
            pipeline
            | beam.Create(list(range(12)))
            | beam.ParDo(_LeaveFile(folder, 12))
            | beam.GroupByKey()
            | beam.Map(lambda pair: (folder / f"grouped-{pair[0]}").touch())
        )
    return folder, pipeline.result


def test_a_worker_that_is_done_early_gets_what_is_left(dealt):
    folder, _ = dealt
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{prefix}{n}" for prefix in ("", "grouped-") for n in range(12)}


def test_the_counters_of_all_bundles_are_summed(dealt):
    _, result = dealt
    (counter,) = result.metrics().query()["counters"]
    assert counter.committed == 12


def test_a_stage_without_elements_is_run(tmp_path):
    with engine.make_pipeline(TWO_WORKERS) as pipeline:
        _ = (
            pipeline
            | beam.Create([])
            | beam.ParDo(_LeaveFile(tmp_path, 0))
            | beam.combiners.Count.Globally()
            | beam.Map(lambda count: (tmp_path / f"{count} elements").touch())
        )
    assert [path.name for path in tmp_path.iterdir()] == ["0 elements"]


def test_an_error_ends_the_job_and_the_rest_is_not_begun(tmp_path):
    def fail(element, folder=tmp_path):
        (folder / str(element)).touch()
        raise ValueError(f"element {element} is bad")

    pipeline = engine.make_pipeline(TWO_WORKERS)
    _ = pipeline | beam.Create(list(range(200))) | beam.Map(fail)
    with pytest.raises(RuntimeError, match=r"element \d+ is bad"):
        pipeline.run()
    # One bundle a worker, and one that may have been taken while the first error was on its way.
    assert len(list(tmp_path.iterdir())) <= 3


@given(sizes=st.lists(st.integers(1, 3), max_size=200), num_workers=st.integers(1, 40))
def test_bundles_hold_every_part_once_in_order_and_become_smaller(sizes, num_workers):
    data = (b"%d" % number for number in itertools.count())
    given_parts = [list(itertools.islice(data, size)) for size in sizes]
    parts = local_runner._Parts(given_parts)
    bundles = list(iter(lambda: parts.take(num_workers), None))
    assert list(itertools.chain(*bundles)) == list(itertools.chain(*given_parts))
    places = {element: place for place, part in enumerate(given_parts) for element in part}
    counts = [len({places[element] for element in bundle}) for bundle in bundles]
    assert counts == sorted(counts, reverse=True)
    assert set(counts[-num_workers:]) <= {0, 1}


def test_a_worker_ends_a_bundle_without_waiting_for_beams_sampler(tmp_path):
    def note(_, path=tmp_path / "defaults"):
        import inspect

        from apache_beam.runners.worker import statesampler

        period = inspect.signature(statesampler.StateSampler).parameters["sampling_period_ms"]
        path.write_text(str(period.default))

    with engine.make_pipeline(TWO_WORKERS) as pipeline:
        _ = pipeline | beam.Create([1]) | beam.Map(note)
    from apache_beam.runners.worker import statesampler

    assert int((tmp_path / "defaults").read_text()) < statesampler.DEFAULT_SAMPLING_PERIOD_MS / 10
