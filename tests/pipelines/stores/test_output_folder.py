import contextlib
import functools
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from builds import build_here, build_of, files_of, prepare, run_build_here, shards_of
from image_files import scan_tree, scans_of, write_tree
from killed import killed_anywhere
from s3_server import BUCKET

from pipelines import errors
from pipelines.shards import write
from pipelines.shards.finish import finish_dataset, require_finished
from pipelines.stores import output_folder
from tfrecord_io import Manifest, ManifestError
from tfrecord_io.stores import file_lock, replace
from tfrecord_io.stores.folder import BUILD_DIR, Folder


@pytest.fixture
def storage(tmp_path):
    return Folder(str(tmp_path / "out"))


scans = scans_of(lambda: scan_tree({"train": 6, "test": 2}))
complete = build_of("scans", "--num_shards=4")


def identity_of(scans, output, *more):
    with prepare(scans, output, "--num_shards=4", *more) as job:
        return job.build.draft.options


# ---- one build at a time


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("given", "expected"), [(None, 0o700), (0o755, 0o700), (0o2770, 0o2770)])
def test_the_build_folder_is_shared_with_those_who_may_write_to_the_output_and_goes_at_the_end(
    storage, given, expected, fails
):
    output = Path(storage.root)
    if given is not None:
        output.mkdir()
        output.chmod(given)
    with contextlib.suppress(KeyboardInterrupt), output_folder.locked(storage):
        assert stat.S_IMODE((output / BUILD_DIR).stat().st_mode) == expected
        if fails:
            raise KeyboardInterrupt
    assert not (output if given is None else output / BUILD_DIR).exists()


def test_a_lock_that_is_held_is_refused_and_names_its_holder(tmp_path):
    path = tmp_path / "folder" / "lock"
    lock = functools.partial(file_lock.held, path, "busy")
    with lock():
        with pytest.raises(errors.UserError, match=rf"process id {os.getpid()}\) is"), lock():
            pass
        path.write_text("")  # as it is before its holder has written its id
        with pytest.raises(errors.UserError, match="unknown"), lock():
            pass
    assert not path.exists()
    with lock():
        pass


# ---- what is there already


SHARDS = ["train-00000-of-00001.tfrecord"]


def place_of(storage, overwrite=False):
    return output_folder.place_of(storage, {"seed": 0}, SHARDS, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", [*SHARDS, "train-00000-of-00001.json", "report.html"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_a_build_would_write_over_is_refused(storage, name, is_folder, overwrite):
    write_tree(Path(storage.root), {"notes.txt": b"mine"})
    assert place_of(storage) is storage
    write_tree(Path(storage.root), {f"{name}/mine" if is_folder else name: b"theirs"})
    before = files_of(Path(storage.root))
    with pytest.raises(errors.UserError, match=f"holds {name}, .* --output"):
        place_of(storage, overwrite)
    assert files_of(Path(storage.root)) == before


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--seed=1"], "seed: 0 there, 1 now"),
        (["--image_size=9"], r"image_size: \[8, 8\] there, \[9, 9\] now"),
        ([r"--patient_regex=^(\w)"], "patient_regex: "),
    ],
)
def test_a_changed_option_is_refused_and_named_with_the_way_out(scans, complete, more, named):
    before = files_of(complete)
    with pytest.raises(errors.UserError, match=rf"(?s){named}.*--overwrite"):
        identity_of(scans, complete, *more)
    assert files_of(complete) == before


def test_a_lost_shard_of_a_complete_dataset_is_named(scans, complete, tmp_path):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    shard = next(output.glob("test-*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=rf"{shard.name} has .*again with --overwrite"):
        identity_of(scans, output)
    shard.unlink()
    with pytest.raises(ManifestError, match=rf"{shard.name} is missing"):
        identity_of(scans, output)
    assert build_here(scans, output, "--num_shards=4", "--overwrite") == output
    assert shards_of(output) == shards_of(complete)


@pytest.mark.parametrize("name", ["manifest.json", f"{BUILD_DIR}/plan.json"])
def test_a_damaged_manifest_or_plan_is_named_and_replaced_when_told(scans, tmp_path, name):
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


def write_all(job):
    with job.build.source.open() as reader:
        for task in job.todo:
            write.write_shard(job.build, task, reader, job.build.output.create)


def without_waiting(output):
    """Returns the files of a folder, without those of a dataset that is to replace it."""
    return {n: text for n, text in files_of(output).items() if not n.startswith((".w", BUILD_DIR))}


def test_a_dataset_and_nothing_else_is_replaced_when_the_new_one_is_finished(
    scans, complete, tmp_path
):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    strangers = {"notes.txt": b"mine", "train.json": b"mine", "sub/manifest.json": b"mine"}
    strangers |= {"mine-00000-of-00002.tfrecord": b"mine", "train-00000-of-00099.json": b"mine"}
    write_tree(output, strangers)
    before = files_of(output)
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
        assert without_waiting(output) == before
        finish_dataset(job.build)
    assert files_of(output) == strangers | files_of(build_here(scans, tmp_path / "new", *OTHER))


def test_what_only_decoding_shows_leaves_the_dataset_and_a_build_that_goes_on(
    complete, tmp_path, capsys
):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    before, folder = files_of(output), scan_tree({"train": 6, "test": 2})
    damaged = next(name for name in folder if "train" in name)
    damaged_scans = write_tree(tmp_path / "scans", folder | {damaged: b"\xff\xd8cut off"})
    assert run_build_here(damaged_scans, output, *OTHER, "--max_reject_fraction=0") == 1
    assert f"What {output} held is as it was" in capsys.readouterr().err
    assert without_waiting(output) == before
    written = finished_files(output / ".waiting")
    build_here(damaged_scans, output, *OTHER, "--max_reject_fraction=1")
    assert written == finished_files(output)
    wanted = build_here(damaged_scans, tmp_path / "new", *OTHER, "--max_reject_fraction=1")
    assert files_of(output) == files_of(wanted)


def refused_flags(folder, scans):
    """Returns flags with which a build is refused, each at another point of its preparation."""
    one = next(scans.rglob("*.jpeg")).relative_to(scans)
    (folder / "one.csv").write_text(f"path,label\n{one},CNV\n")
    return [
        ["--window=40,400"],
        ["--keep_split=valid"],
        ["--splits=patient", "--split_fractions=train=0.999,test=0.001"],
        [f"--labels={folder / 'one.csv'}"],
        ["--exclude_regex=."],
        ["--classes=AMD,CNV"],
    ]


@pytest.mark.parametrize("place", ["disk", "store"])
def test_whatever_is_refused_leaves_the_dataset_as_it_was(scans, complete, tmp_path, s3, place):
    output = str(tmp_path / "out") if place == "disk" else ON_STORE

    def found():
        files = files_of(tmp_path / "out") if place == "disk" else s3.read("out/")
        return {name: text for name, text in files.items() if not name.startswith(".waiting/")}

    build_here(scans, output, "--num_shards=4")
    before = found()
    refused = refused_flags(tmp_path, scans)
    for flags in refused if place == "disk" else refused[1::4]:
        assert run_build_here(scans, output, "--overwrite", *flags), flags
        assert found() == before, flags
    with pytest.raises(errors.RefusedError, match=r"to accept .* See \S+\.waiting/rejects\.csv"):
        build_here(scans, output, "--overwrite", f"--labels={tmp_path / 'one.csv'}")
    assert len(before) > 8
    assert found() == before


def test_a_refusal_leaves_the_shards_of_a_replacement_that_was_killed(scans, complete, tmp_path):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
    before = files_of(output)
    for flag in ("--keep_split=valid", "--splits=patient", "--window=1,2"):
        with pytest.raises(errors.UserError, match=flag[:7]):
            build_here(scans, output, *OTHER, flag)
        assert files_of(output) == before
    with prepare(scans, output, *OTHER) as job:
        assert not job.todo


def test_a_replacement_whose_list_is_damaged_is_refused(scans, complete, tmp_path):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    for content in (b"", b"[]", b'{"new": 3}'):
        write_tree(output, {".waiting/list.json": content})
        with pytest.raises(errors.UserError, match=r"list\.json is damaged"):
            build_here(scans, output, *OTHER)
        assert without_waiting(output) == files_of(complete)


def test_a_dataset_that_is_being_replaced_is_said_to_be(scans, complete, tmp_path):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
    replace.promise(Folder(str(output)))
    (output / "manifest.json").unlink()
    with pytest.raises(ManifestError, match="--overwrite"):
        Manifest.load(output)


def test_a_build_that_is_killed_while_it_replaces_leaves_the_old_or_the_new(
    scans, complete, tmp_path
):
    def replace():
        with prepare(scans, output, *OTHER) as job:
            write_all(job)
            finish_dataset(job.build)

    output, outcomes = Path(shutil.copytree(complete, tmp_path / "out")), set()
    new = without_waiting(build_here(scans, tmp_path / "new", *OTHER))
    old = without_waiting(complete)
    for number, _ in enumerate(killed_anywhere(output, tmp_path / "states", replace)):
        with output_folder.locked(Folder(str(output))):
            found = without_waiting(output)
        assert found in (old, new)
        outcomes.add(found == new)
        if found == old and number % 8 == 0:  # neighbours differ by a file
            build_here(scans, output, *OTHER)
            assert without_waiting(output) == new
            assert not list(output.glob(".*"))
    assert outcomes == {False, True}


def test_an_engine_may_repeat_the_last_step(scans, complete, tmp_path):
    output = Path(shutil.copytree(complete, tmp_path / "out"))
    with prepare(scans, output, *OTHER) as job:
        write_all(job)
        with pytest.raises(errors.BuildError, match=r"\.waiting/manifest\.json is missing"):
            require_finished(job.build)
        for _ in range(2):
            finish_dataset(job.build)
        require_finished(job.build)
    assert files_of(output) == files_of(build_here(scans, tmp_path / "new", *OTHER))


def test_on_a_store_the_dataset_stays_until_the_new_one_is_finished(scans, tmp_path, s3):
    build_here(scans, ON_STORE, "--num_shards=4")
    before = s3.read("out/")
    with prepare(scans, ON_STORE, *OTHER) as job:
        write_all(job)
        waiting = s3.read("out/.waiting/")
        assert len(waiting) > 8
        assert s3.read("out/") == before | {f".waiting/{n}": waiting[n] for n in waiting}
        finish_dataset(job.build)
    assert s3.read("out/") == files_of(build_here(scans, tmp_path / "new", *OTHER))


# ---- going on


def finished_files(output):
    """Returns what tells whether a file was written anew: its inode and its time."""
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in output.glob("*.tfrecord")
    }


def interrupted(complete, scans, folder):
    """Returns a build that was killed with half of its shards done, and the other half begun."""
    with prepare(scans, folder, "--num_shards=4") as job, job.build.source.open() as reader:
        for task in job.todo[::2]:
            write.write_shard(job.build, task, reader, job.build.output.create)
        for task in job.todo[1::2]:
            half = (complete / task.shard_name).read_bytes()[:100]
            (folder / BUILD_DIR / f".{task.shard_name}.0a.tmp").write_bytes(half)
    return folder


def test_a_build_goes_on_where_it_stopped(scans, complete, tmp_path, capsys):
    output = interrupted(complete, scans, tmp_path / "out")
    before = finished_files(output)
    assert 0 < len(before) < len(shards_of(complete))
    build_here(scans, output, "--num_shards=4")
    assert "resuming: " in capsys.readouterr().err
    assert before.items() <= finished_files(output).items()
    assert files_of(output) == files_of(complete)


def test_a_shard_whose_files_do_not_fit_is_written_anew(scans, complete, tmp_path):
    output = interrupted(complete, scans, tmp_path / "out")
    shard = next(output.glob("train-*.tfrecord"))
    files = shard, shard.with_suffix(".json"), output / BUILD_DIR / f"{shard.stem}.parquet"
    whole = {path: path.read_bytes() for path in files}
    sidecar = json.loads(whole[files[1]])

    def unfinished():
        with prepare(scans, output, "--num_shards=4") as job:
            return {task.shard_name for task in job.todo}

    before = unfinished()
    for path, content in (
        (files[0], whole[files[0]][:-5]),
        (files[1], whole[files[1]][:-9]),
        (files[2], None),
        # A release that did not count pixels left no sums.
        *(
            (files[1], json.dumps(sidecar | {name: wrong}).encode())
            for name, wrong in (("fingerprint", "of another build"), ("statistics", None))
        ),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        assert unfinished() == before | {shard.name}
        path.write_bytes(whole[path])
    files[1].unlink()
    build_here(scans, output, "--num_shards=4")
    assert files_of(output) == files_of(complete)


def test_an_unfinished_build_of_other_options_is_replaced_on_demand(scans, complete, tmp_path):
    output = interrupted(complete, scans, tmp_path / "out")
    before = files_of(output)
    with pytest.raises(errors.UserError, match=r"(?s)num_shards: 4 there, 2 now.*--overwrite"):
        build_here(scans, output, "--num_shards=2")
    assert files_of(output) == before
    build_here(scans, output, "--num_shards=2", "--overwrite")
    assert len(list(output.glob("train-*"))) == 4
    assert not [*output.glob("*-of-00004*"), *output.glob(BUILD_DIR)]
