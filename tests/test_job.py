import json

import pytest
from builds import build_here, prepare
from image_files import kermany_archive, scan_tree, under, write_tar, write_tree, write_zip

from pipelines import errors
from pipelines.engine.job import prepared
from pipelines.options import parse_options
from pipelines.stores.output import BUILD_DIR
from pipelines.stores.output_state import PLAN_JSON

TREE = scan_tree({"train": 4, "test": 2})


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("scans") / "scans.zip", kermany_archive(TREE))


def test_a_job_is_listed_and_planned_before_any_engine_starts(archive, tmp_path, capsys):
    with prepare(archive, tmp_path / "out", "--num_shards=3") as job:
        names = [task.shard_name for task in job.todo]
        assert names == [
            *(f"train-0000{index}-of-00003.tfrecord" for index in range(3)),
            *(f"test-0000{index}-of-00002.tfrecord" for index in range(2)),
        ]
        assert sum(task.num_refs for task in job.todo) == len(TREE)
        assert job.num_finished == 0
        planned = json.loads(job.storage.read(PLAN_JSON))
        assert planned["fingerprint"] == job.build.draft.fingerprint
        assert (tmp_path / "out" / BUILD_DIR / "plan.arrow").exists()
    said = capsys.readouterr().err
    assert f"listing the images of {archive}" in said
    assert f"found {len(TREE)} images among {len(kermany_archive(TREE))} files" in said
    assert f"{len(TREE)} copies in a second tree" in said


@pytest.mark.parametrize(
    ("same", "more", "message"),
    [
        ("--tree=a/", "--seed=7", "seed: 0 there, 7 now"),
        ("--tree=a", "--tree=b", "tree: 'a' there, 'b' now"),
        ("--classes=CNV,DME", "--classes=CNV,DRUSEN", "classes: "),
    ],
)
def test_another_build_of_a_tar_gz_is_refused_after_it_was_listed(tmp_path, same, more, message):
    second = {name.replace("CNV", "AMD"): content for name, content in TREE.items()}
    path = write_tar(tmp_path / "scans.tar.gz", {**under("a", TREE), **under("b", second)})
    flags = ["--tree=a", "--classes=CNV,DME"]
    output = build_here(path, tmp_path / "out", *flags)
    with prepare(path, output, *flags, same) as job:
        assert job is None
    with pytest.raises(errors.UserError, match=message), prepare(path, output, *flags, more):
        pass


@pytest.mark.parametrize(
    ("flags", "names"),
    [([], ("CNV", "DME", "DRUSEN", "NORMAL")), (["--classes=NORMAL,CNV"], ("NORMAL", "CNV"))],
)
def test_classes_have_the_order_they_are_given_in(archive, tmp_path, flags, names):
    with prepare(archive, tmp_path / "out", *flags) as job:
        assert job.build.draft.label_names == names


@pytest.mark.parametrize("name", ["nowhere", "empty", "text.zip"])
def test_an_input_that_cannot_be_used_leaves_no_output(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.zip").write_text("no archive")
    source = "archive" if name == "text.zip" else "directory"
    argv = [f"--source={source}", f"--input={tmp_path / name}", f"--output={tmp_path / 'out'}"]
    with pytest.raises(errors.UserError), prepared(parse_options(argv)):
        pass
    assert not (tmp_path / "out").exists()


def test_a_source_and_an_output_may_be_given_relative_to_where_one_is(tmp_path, monkeypatch):
    write_tree(tmp_path / "scans", TREE)
    monkeypatch.chdir(tmp_path)
    build_here("scans", "out")
    assert (tmp_path / "out" / "manifest.json").exists()
