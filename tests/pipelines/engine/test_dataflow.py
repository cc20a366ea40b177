"""The job as Dataflow would get it: the full description, written without network or account.

It goes through a part of Beam that is not public (`DataflowApplicationClient`), which is why
setup.py allows one minor version of Beam alone.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from dataset_factory import bare_manifest

from pipelines import build_tfrecords, errors, options
from pipelines.engine import engine
from pipelines.planning import plan
from pipelines.shards.build import Build, Job
from pipelines.sources.archive import ArchiveSource
from tfrecord_io.stores.remote import StoredFile

pytestmark = pytest.mark.slow
pytest.importorskip("google.cloud.dataflow", reason="needs pip install 'apache-beam[gcp]'")

IMAGE = "europe-west4-docker.pkg.dev/some-project/images/scan-tfrecords:1"
COMMAND = [
    "--source=archive", "--input=gs://some-bucket/kermany2018.zip", "--num_shards=40",
    "--output=gs://some-bucket/oct", "--runner=DataflowRunner", "--project=some-project",
    "--region=europe-west4", "--temp_location=gs://some-bucket/temp",
    "--staging_location=gs://some-bucket/staging", "--max_num_workers=10",
    "--worker_machine_type=n2-standard-4",
    "--service_account_email=builder@some-project.iam.gserviceaccount.com",
]  # fmt: skip
# What keeps Beam from looking for an account and from sending the job.
OFFLINE = ["--no_auth", "--dry_run=True"]
SECRETS = {"KAGGLE_API_TOKEN": "KGAT_secret", "AWS_SECRET_ACCESS_KEY": "aws-secret"}


class Spec:
    """What was written for given extra flags: the job's description, the pipeline's, and files."""

    def __init__(self, folder, *more):
        from apache_beam.options.pipeline_options import GoogleCloudOptions
        from apache_beam.portability.api import beam_runner_api_pb2
        from apache_beam.runners.dataflow.internal import apiclient

        with pytest.MonkeyPatch.context() as patch:
            # Beam asks the machine it may be running on for an account; nothing answers here.
            for name, value in {**SECRETS, "NO_GCE_CHECK": "true"}.items():
                patch.setenv(name, value)
            chosen = options.parse_options([*COMMAND, *more])
            pipeline = engine.make_pipeline([*chosen.beam_args, *OFFLINE])
            build_tfrecords.run(job_of(chosen), pipeline)
            job = pipeline.result.job
            places = job.options.view_as(GoogleCloudOptions)
            places.staging_location = str(folder / "staging")
            places.template_location = str(folder / "job.json")
            (folder / "staging").mkdir()
            client = apiclient.DataflowApplicationClient(job.options, places.staging_location)
            client.create_job(job)
        self.job = json.loads((folder / "job.json").read_text())
        self.options: dict[str, Any] = self.job["environment"]["sdkPipelineOptions"]["options"]
        self.files = {path.name: path for path in (folder / "staging").iterdir()}
        contents = {name: path.read_bytes() for name, path in self.files.items()}
        self.pipeline = beam_runner_api_pb2.Pipeline.FromString(contents["pipeline.pb"])
        self.text = json.dumps(self.job) + b"\n".join(contents.values()).decode("latin-1")


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return Spec(tmp_path_factory.mktemp("dataflow"), f"--sdk_container_image={IMAGE}")


def job_of(chosen):
    """Returns the job that `prepared` would make, had it listed the archive."""
    tasks = tuple(plan.ShardTask(index, "train", index, 40, 2000) for index in range(40))
    build = Build(
        output=chosen.output.output,
        draft=bare_manifest(image_shape=(224, 224, 1), label_names=("CNV", "DME"), splits={}),
        source=ArchiveSource(StoredFile(chosen.source.input, 0, ""), facts={}),
        max_reject_fraction=chosen.output.max_reject_fraction,
    )
    return Job(build=build, todo=tasks, num_finished=0)


def test_the_image_is_the_workers_and_the_options_arrive(spec):
    (environment,) = spec.pipeline.components.environments.values()
    assert IMAGE.encode() in environment.payload
    # Nothing is left for a worker to install when it starts.
    assert [name for name in spec.files if name.endswith((".gz", ".whl"))] == []
    given = {"project": "some-project", "region": "europe-west4", "max_num_workers": 10}
    assert given.items() <= spec.options.items()
    (pool,) = spec.job["environment"]["workerPools"]
    assert IMAGE in json.dumps(pool)
    assert pool["machineType"] == "n2-standard-4"
    assert spec.job["type"] == "JOB_TYPE_BATCH"


def test_without_an_image_the_package_is_staged(tmp_path):
    spec = Spec(tmp_path, f"--setup_file={Path(__file__).parents[3] / 'setup.py'}")
    (package,) = [path for name, path in spec.files.items() if name.endswith(".gz")]
    assert package.name in json.dumps(spec.job["environment"]["workerPools"][0]["packages"])
    with tarfile.open(package) as archive:
        names = archive.getnames()
    assert any(name.endswith("pipelines/engine/engine.py") for name in names)
    assert any(name.endswith("tfrecord_io/format/schema.py") for name in names)
    assert any(name.endswith("/requires_build") for name in names)  # it installs the extra `build`


def test_workers_that_would_lack_the_package_are_refused_at_once():
    with pytest.raises(errors.UserError, match="--sdk_container_image"):
        engine.make_pipeline(options.parse_options(COMMAND).beam_args)


def test_neither_credentials_nor_the_main_session_leave_the_launcher(spec):
    assert [name for name, value in SECRETS.items() if value in spec.text] == []
    assert str(Path.home()) not in json.dumps(spec.options)
    assert not spec.options.get("save_main_session")
    assert "pickled_main_session" not in spec.text


def test_the_job_is_one_line_of_steps_without_pixels_or_names_of_files(spec):
    (root,) = spec.pipeline.root_transform_ids
    steps = spec.pipeline.components.transforms
    names = [steps[name].unique_name for name in steps[root].subtransforms]
    assert names == ["Tasks", "WriteShards", "Gather", "FinishDataset"]
    assert ".jpeg" not in spec.text
    assert spec.files["pipeline.pb"].stat().st_size < 100_000
