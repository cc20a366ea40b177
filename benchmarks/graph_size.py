"""How large are the plan, Beam's graph and Dataflow's job request, from 84,484 images upwards?

    python benchmarks/graph_size.py

The graph has one task per shard and no images; the images are in the plan, which is a file. Shards
have the default size. The size of the plan is measured up to 1.3 million images, and beyond that
computed from the same number of bytes per image.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import apache_beam as beam
import plan_scale

from pipelines.engine import engine
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.planning import plan
from pipelines.shards.build import Build
from pipelines.sources.archive import ArchiveSource
from tfrecord_io.decoding import preprocess
from tfrecord_io.format.manifest import Manifest

STRIDE = 50_295  # of a 224 × 224 × 1 record with four classes
SHARD_BYTES = plan.DEFAULT_SHARD_SIZE_MB * 1_000_000
MEASURED_PLANS = (84_484, 1_300_000)
SIZES = (84_484, 1_300_000, 10_000_000, 100_000_000)
MORE_SHARDS = (1_000, 10_000, 100_000)


def plan_bytes(num_images: int) -> int:
    """Returns the size of the plan file, which is written as in a build."""
    listing = list_images(plan_scale.Simulated(num_images), ListingOptions())
    refs, tasks = plan.make_plan(listing.refs, STRIDE, plan.PlanOptions())
    size = plan_scale.CountedBytes()
    plan.write_refs(size, refs, tasks, "0" * 64)
    return size.num_bytes


def make_tasks(num_shards: int) -> tuple[plan.ShardTask, ...]:
    """Returns the tasks of a build with this number of shards."""
    return tuple(
        plan.ShardTask(index, "train", index, num_shards, 1272) for index in range(num_shards)
    )


def graph(num_shards: int) -> beam.Pipeline:
    """Returns the pipeline of a build with this number of shards."""
    draft = Manifest(
        name="oct",
        image_shape=(224, 224, 1),
        label_names=("CNV", "DME", "DRUSEN", "NORMAL"),
        splits={},
        preprocessing=preprocess.Preprocessing().to_dict(),
        source={},
        counts={"files": num_shards * 1272},
        rejects={},
        options={},
        fingerprint="0" * 64,
        versions=preprocess.decoder_versions(),
    )
    build = Build(
        output="gs://bucket/oct",
        draft=draft,
        source=ArchiveSource(Path("/data/kermany2018.zip")),
        max_reject_fraction=0.01,
    )
    pipeline = beam.Pipeline()
    (
        pipeline
        | "Tasks" >> beam.Create(make_tasks(num_shards))
        | "WriteShards" >> engine.WriteShards(build)
        | "FinishDataset" >> engine.FinishDataset(build)
    )
    return pipeline


def request_bytes(pipeline: beam.Pipeline) -> int | None:
    """Returns the size of the request for a Dataflow job; None if its client is not installed."""
    try:
        from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
        from apache_beam.runners.dataflow.internal import apiclient
    except ImportError:
        return None
    flags = ["--project=some-project", "--region=europe-west4", "--no_auth", "--dry_run=True"]
    places = ["--temp_location=gs://bucket/temp", "--staging_location=gs://bucket/staging"]
    options = PipelineOptions([*flags, *places, "--sdk_container_image=host/image:1"])
    try:
        job = DataflowRunner().run_pipeline(pipeline, options).job
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        local = job.options.view_as(GoogleCloudOptions)
        local.staging_location = folder
        local.template_location = f"{folder}/job.json"
        apiclient.DataflowApplicationClient(job.options, folder).create_job(job)
        content = Path(local.template_location).read_bytes()
        json.loads(content)
        return len(content)


def graph_row(name: str, num_shards: int) -> str:
    """Returns a row of the table: the sizes for this number of shards."""
    start = time.perf_counter()
    pipeline = graph(num_shards)
    size = len(pipeline.to_runner_api().SerializeToString())
    seconds = time.perf_counter() - start
    request = request_bytes(pipeline)
    shown = "not installed" if request is None else f"{request / 1e3:.0f}"
    per_shard = size / num_shards
    cells = [name, f"{num_shards:,}", f"{size / 1e3:,.0f}", f"{per_shard:.0f}", f"{seconds:.1f}"]
    return "| " + " | ".join([*cells, shown]) + " |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    bytes_per_image = 0.0
    print("| images | plan file, MB | how |\n| --- | --- | --- |")
    for num_images in SIZES:
        how = "computed"
        if num_images in MEASURED_PLANS:
            bytes_per_image, how = plan_bytes(num_images) / num_images, "measured"
        print(f"| {num_images:,} | {bytes_per_image * num_images / 1e6:,.1f} | {how} |", flush=True)
    print(
        "\n| images | shards | graph, kB | B per shard | built in, s | Dataflow's request, kB |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for num_images in SIZES:
        num_shards = -(-num_images * STRIDE // SHARD_BYTES)
        print(graph_row(f"{num_images:,}", num_shards), flush=True)
    for num_shards in MORE_SHARDS:
        print(graph_row("", num_shards), flush=True)


if __name__ == "__main__":
    main()
