import contextlib
import json
import shutil
import stat
from pathlib import Path

import pytest
from builds import build_here, build_of, files_of, prepare, run_build_here, shards_of
from image_files import scan_tree, scans_of, write_tree
from power_cut import killed_anywhere
from s3_server import BUCKET

from pipelines import errors
from pipelines.shards import write
from pipelines.shards.finish import finish_dataset, require_finished
from pipelines.stores import output_folder
from tfrecord_io import Manifest, ManifestError
from tfrecord_io.stores import replace
from tfrecord_io.stores.folder import BUILD_DIR, Folder

scans = scans_of(lambda: scan_tree({"train": 6, "test": 2}))
complete = build_of("scans", "--num_shards=4")


@pytest.fixture
def output(complete, tmp_path):
    """A complete dataset, which may be changed."""
    return Path(shutil.copytree(complete, tmp_path / "out"))


def identity_of(scans, output, *more):
    with prepare(scans, output, "--num_shards=4", *more) as job:
        return job.build.draft.options


def write_all(job):
    with job.build.source.open() as reader:
        for task in job.todo:
            write.write_shard(job.build, task, reader, job.build.output.create)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("given", "expected"), [(None, 0o700), (0o755, 0o700), (0o2770, 0o2770)])
def test_the_build_folder_is_shared_with_those_who_may_write_to_the_output_and_goes_at_the_end(
    tmp_path, given, expected, fails
):
    output = tmp_path / "out"
    if given is not None:
        output.mkdir()
        output.chmod(given)
    with contextlib.suppress(KeyboardInterrupt), output_folder.locked(Folder(output)):
        assert stat.S_IMODE((output / BUILD_DIR).stat().st_mode) == expected
        if fails:
            raise KeyboardInterrupt
    assert not (output if given is None else output / BUILD_DIR).exists()


# ---- what is there already

SHARDS = ["train-00000-of-00001.tfrecord"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", [*SHARDS, "train-00000-of-00001.json", "report.html"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_a_build_would_write_over_is_refused(tmp_path, name, is_folder, overwrite):
    def place_of():
        return output_folder.place_of(storage, {"seed": 0}, SHARDS, overwrite=overwrite)

    storage = Folder(write_tree(tmp_path / "out", {"notes.txt": b"mine"}))
    assert (place_of() is storage) == (not overwrite)
    write_tree(tmp_path / "out", {f"{name}/mine" if is_folder else name: b"theirs"})
    before = files_of(tmp_path)
    with pytest.raises(errors.UserError, match=f"holds {name}, .* --output"):
        place_of()
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--seed=1", "seed: 0 there, 1 now"),
        ("--image_size=9", r"image_size: \[8, 8\] there, \[9, 9\] now"),
        (r"--patient_regex=^(\w)", "patient_regex: "),
    ],
)
def test_a_changed_option_is_refused_and_named_with_the_way_out(scans, complete, more, named):
    before = files_of(complete)
    with pytest.raises(errors.UserError, match=rf"(?s){named}.*--overwrite"):
        identity_of(scans, complete, more)
    assert files_of(complete) == before


def test_a_lost_shard_of_a_complete_dataset_is_named(scans, complete, output):
    shard = next(output.glob("test-*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=rf"{shard.name} has .*again with --overwrite"):
        identity_of(scans, output)
    shard.unlink()
    with pytest.raises(ManifestError, match=rf"{shard.name} is missing"):
        identity_of(scans, output)
    build_here(scans, output, "--num_shards=4", "--overwrite")
    assert shards_of(output) == shards_of(complete)


@pytest.mark.parametrize("name", ["manifest.json", f"{BUILD_DIR}/plan.json"])
def test_a_damaged_manifest_or_plan_is_named_and_replaced_on_demand(scans, tmp_path, name):
    output = tmp_path / "out"
    for content in (b"", b"{}", b"[]", b"\xff\xfe", b'{"format_version": 99}'):
        write_tree(output, {name: content})
        with pytest.raises(errors.UserError, match=rf"(?s){name}.* --overwrite"):
            identity_of(scans, output)
    with prepare(scans, output, "--num_shards=4", "--overwrite") as job:
        assert job.todo


# ---- replacing

OTHER = ("--num_shards=2", "--overwrite")
ON_STORE = f"s3://{BUCKET}/out"


@pytest.fixture(scope="module")
def replacement(scans, tmp_path_factory):
    """The files of the dataset of `OTHER`."""
    return files_of(build_here(scans, tmp_path_factory.mktemp("new") / "out", *OTHER))


def without_waiting(output):
    """Returns the files of a folder, without those of a dataset that is to replace it."""
    return {
        n: text for n, text in files_of(output).items() if not n.startswith((".scan", BUILD_DIR))
    }


def test_a_dataset_and_nothing_else_is_replaced_when_the_new_one_is_finished(
    scans, output, replacement
):
    names = ("notes.txt", "train.json", "sub/manifest.json", "mine-00000-of-00002.tfrecord")
    strangers = dict.fromkeys([*names, "train-00000-of-00099.json"], b"mine")
    before = files_of(write_tree(output, strangers))
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
        assert without_waiting(output) == before
        with pytest.raises(errors.BuildError, match=r"\.scan-tfrecords/manifest\.json is missing"):
            require_finished(job.build)
        for _ in range(2):  # an engine may repeat the last step
            finish_dataset(job.build)
        require_finished(job.build)
    assert files_of(output) == strangers | replacement


def test_what_only_decoding_shows_leaves_the_dataset_and_a_build_that_resumes(
    output, tmp_path, capsys
):
    before, folder = files_of(output), scan_tree({"train": 6, "test": 2})
    damaged = next(name for name in folder if "train" in name)
    damaged_scans = write_tree(tmp_path / "scans", folder | {damaged: b"\xff\xd8cut off"})
    assert run_build_here(damaged_scans, output, *OTHER, "--max_reject_fraction=0") == 1
    assert f"What {output} held is as it was" in capsys.readouterr().err
    assert without_waiting(output) == before
    written = marks_of(output / ".scan-tfrecords")
    build_here(damaged_scans, output, *OTHER, "--max_reject_fraction=1")
    assert written == marks_of(output)


@pytest.mark.parametrize("place", ["disk", "store"])
def test_whatever_is_refused_leaves_the_dataset_as_it_was(scans, tmp_path, s3, place):
    def found():
        files = files_of(tmp_path / "out") if place == "disk" else s3.read("out/")
        return {
            name: text for name, text in files.items() if not name.startswith(".scan-tfrecords/")
        }

    output = str(tmp_path / "out") if place == "disk" else ON_STORE
    one = next(scans.rglob("*.jpeg")).relative_to(scans)
    (tmp_path / "one.csv").write_text(f"path,label\n{one},CNV\n")
    labels = f"--labels={tmp_path / 'one.csv'}"
    build_here(scans, output, "--num_shards=4")
    before = found()
    # Each is refused at another point of the preparation.
    for flag in ("--window=40,400", "--keep_split=valid", labels, "--classes=AMD,CNV"):
        assert run_build_here(scans, output, "--overwrite", flag), flag
        assert found() == before, flag
    with pytest.raises(errors.RefusedError, match=r"See \S+\.scan-tfrecords/rejects\.csv"):
        build_here(scans, output, "--overwrite", labels)
    assert len(before) > 8
    assert found() == before


def test_a_refusal_leaves_the_shards_of_a_replacement_that_was_killed(scans, output):
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
    before = files_of(output)
    for flag in ("--keep_split=valid", "--splits=patient", "--window=1,2"):
        with pytest.raises(errors.UserError, match=flag[:7]):
            build_here(scans, output, *OTHER, flag)
        assert files_of(output) == before
    with prepare(scans, output, *OTHER) as job:
        assert not job.todo


def test_a_build_that_is_killed_while_it_replaces_leaves_the_old_or_the_new(
    scans, complete, output, replacement, tmp_path
):
    def replace_it():
        with prepare(scans, output, *OTHER) as job:
            write_all(job)
            finish_dataset(job.build)

    old, outcomes = without_waiting(complete), set()
    for number, _ in enumerate(killed_anywhere(output, tmp_path / "states", replace_it)):
        if replace.is_under_way(Folder(output)) and not (output / "manifest.json").exists():
            with pytest.raises(ManifestError, match="--overwrite"):
                Manifest.load(output)
        with output_folder.locked(Folder(output)):
            found = without_waiting(output)
        assert found in (old, replacement)
        outcomes.add(found == replacement)
        if found == old and number % 8 == 0:  # neighbours differ by a file
            build_here(scans, output, *OTHER)
            assert without_waiting(output) == replacement
            assert not list(output.glob(".*"))
    assert outcomes == {False, True}


def test_on_a_store_the_dataset_stays_until_the_new_one_is_finished(scans, replacement, s3):
    build_here(scans, ON_STORE, "--num_shards=4")
    before = s3.read("out/")
    with prepare(scans, ON_STORE, *OTHER) as job:
        write_all(job)
        waiting = s3.read("out/.scan-tfrecords/")
        assert len(waiting) > 8
        assert s3.read("out/") == before | {f".scan-tfrecords/{n}": waiting[n] for n in waiting}
        finish_dataset(job.build)
    assert s3.read("out/") == replacement


# ---- resuming


def marks_of(output):
    """Returns what tells whether a shard was written anew: its inode and its time."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in output.glob("*.tfrecord")}


@pytest.fixture
def interrupted(complete, scans, tmp_path):
    """A build that was killed with half of its shards done, and the other half begun."""
    output = tmp_path / "interrupted"
    with prepare(scans, output, "--num_shards=4") as job, job.build.source.open() as reader:
        for task in job.todo[::2]:
            write.write_shard(job.build, task, reader, job.build.output.create)
        for task in job.todo[1::2]:
            half = (complete / task.shard_name).read_bytes()[:100]
            (output / BUILD_DIR / f".{task.shard_name}.0a.tmp").write_bytes(half)
    return output


def test_a_shard_whose_files_do_not_fit_is_written_anew(scans, complete, interrupted):
    def unfinished():
        with prepare(scans, interrupted, "--num_shards=4") as job:
            return {task.shard_name for task in job.todo}

    shard, before = next(interrupted.glob("train-*.tfrecord")), unfinished()
    files = shard, shard.with_suffix(".json"), interrupted / BUILD_DIR / f"{shard.stem}.parquet"
    whole = {path: path.read_bytes() for path in files}
    sidecar = json.loads(whole[files[1]])
    for path, content in (
        (files[0], whole[files[0]][:-5]),
        (files[1], whole[files[1]][:-9]),
        (files[1], json.dumps(sidecar | {"fingerprint": "of another build"}).encode()),
        (files[1], json.dumps(sidecar | {"statistics": None}).encode()),
        (files[2], None),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        assert unfinished() == before | {shard.name}
        path.write_bytes(whole[path])
    kept = marks_of(interrupted)
    files[1].unlink()
    build_here(scans, interrupted, "--num_shards=4")
    assert {name for name, _ in kept.items() - marks_of(interrupted).items()} == {shard.name}
    assert files_of(interrupted) == files_of(complete)


def test_an_unfinished_build_of_other_options_is_replaced_on_demand(scans, interrupted):
    before = files_of(interrupted)
    with pytest.raises(errors.UserError, match=r"(?s)num_shards: 4 there, 2 now.*--overwrite"):
        build_here(scans, interrupted, "--num_shards=2")
    assert files_of(interrupted) == before
    build_here(scans, interrupted, "--num_shards=2", "--overwrite")
    assert len(list(interrupted.glob("train-*"))) == 4
    assert not [*interrupted.glob("*-of-00004*"), *interrupted.glob(BUILD_DIR)]
