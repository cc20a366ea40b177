from pathlib import Path

import pytest
from builds import parsed

from pipelines import build_tfrecords
from pipelines.listing.options import ListingOptions
from pipelines.planning.plan import PlanOptions
from pipelines.planning.splits import SplitOptions
from pipelines.sources.factory import SourceOptions
from pipelines.stores.output_folder import OutputOptions
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.terminal.address import Address

PATIENT = ["--splits=patient"]
ARCHIVE = ["--source=archive", "--input=scans.zip"]
LABELS = ["--labels=x.csv"]


def test_flags_of_each_form_arrive_where_they_belong():
    chosen = parsed(
        [*ARCHIVE, "--image_size=100x70", "--resize=box", "--num_shards=5", "--overwrite",
         "--classes=NORMAL, CNV", "--layout=split/class", r"--patient_regex=^(\d)",
         "--download_dir=d",
         "--splits=patient", "--split_seed=7", "--output=s3://b/out",
         "--split_fractions=train=0.7,holdout=0.3"]
    )  # fmt: skip
    assert chosen.output == OutputOptions(output=Address("s3://b/out"), overwrite=True)
    assert chosen.pixels == Preprocessing(height=100, width=70, resize="box")
    fractions = (("train", 0.7), ("holdout", 0.3))
    assert chosen.splits == SplitOptions(splits="patient", split_fractions=fractions, split_seed=7)
    assert chosen.plan == PlanOptions(num_shards=5)
    assert chosen.listing == ListingOptions(
        classes=("NORMAL", "CNV"), layout=("split", "class"), patient_regex=r"^(\d)"
    )
    assert chosen.source == SourceOptions(
        source="archive", input="scans.zip", download_dir=Path("d")
    )


@pytest.mark.parametrize(
    ("given", "source"),
    [("a.ZIP", "archive"), ("a.npz", "npz"), ("s3://b/scans", "directory"), (".", "directory"),
     (__file__, "archive"), ("scans", "directory"), (None, "kaggle")],
)  # fmt: skip
def test_the_source_follows_from_the_input(given, source):
    assert SourceOptions(input=given).source == source


@pytest.mark.parametrize(
    ("flags", "workers"),
    [([], "here"), (["--runner=DirectRunner"], "here"), (["--runner=FlinkRunner"], "cluster"),
     (["--runner", "apache_beam.runners.DirectRunner"], "here"),
     (["--runner", "DataflowRunner"], "dataflow")],
)  # fmt: skip
def test_the_runner_tells_where_the_images_are_read(flags, workers):
    assert parsed([*ARCHIVE, *flags]).workers == workers


@pytest.mark.parametrize("argv", [
    ["--source=archive"], ["--source=kaggle", "--input=x.zip"], ["--input= "],
    ["--source=archive", "--inptu=x"], [*ARCHIVE, "--num_examples=99"], ["--num_examples=11"],
    ["--source=synthetic", "--kaggle_dataset=a/b"], ["--source=synthetic", "--preview"],
    *([f"--kaggle_dataset={name}"] for name in ("b", "a/b/c", "../b", "a/b c")),
    ["--layout=split/grade"], ["--layout=split/patient"], ["--labels=t.csv", "--layout=class"],
    ["--label_regex=CNV"], ["--exclude_regex=("], ["--columns=path=a"], ["--label_columns=a"],
    ["--classes=A,B,A"], ["--grades=a"], ["--classes=a,b", "--grades=a,b"],
    *([*LABELS, f"--label_columns={names}"] for names in ("a|b,c", "a,none", "a,path", "a,a")),
    [*LABELS, "--classes=b", "--label_columns=a"], ["--name=My Data"], ["--output=/"],
    ["--image_size=0x5"], ["--seed=-1"], ["--leaks=hide"], ["--fit=stretch", "--min_fill=0.2"],
    ["--split_fractions=train=1"], ["--split_fractions=train"], ["--split_seed=1"],
    [*PATIENT, f"--split_seed={2**63}"], ["--image_size=big"],
    ["--image_size=1x2x3"], ["--image_size=-5"], ["--image_size=224x"], ["--seed=x"],
    ["--grades=0,,2"], ["--classes=A,"], ['--classes="A'], ["--window=40"], ["--channels=2"],
    *([*PATIENT, f"--split_fractions={shares}"]
      for shares in ("train=0.8", "a=0.5,a=0.5", "../a=1", "a=1.5,b=-0.5")),
])  # fmt: skip
def test_a_value_that_cannot_be_read_or_makes_no_sense_is_named(argv, capsys):
    try:
        code = build_tfrecords.main(argv)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert argv[-1].split("=")[0].removeprefix("--") in capsys.readouterr().err
