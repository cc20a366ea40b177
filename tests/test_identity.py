"""What decides the bytes of a dataset, and what does not."""

import io
import os
import shutil
import tarfile

import pytest
from builds import build_here, prepare
from image_files import kermany_archive, png, scan_tree, write_tar, write_tree, write_zip

from pipelines import errors
from pipelines.options import flag_names

TREE = scan_tree({"train": 4, "test": 2})


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write_zip(tmp_path_factory.mktemp("scans") / "scans.zip", kermany_archive(TREE))


def with_other_pixels(files):
    """Returns the same names with other contents of the same sizes."""
    flipped = {}
    for name, content in files.items():
        data = bytearray(content)
        data[len(data) // 2] ^= 1
        flipped[name] = bytes(data)
    return flipped


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_an_archive_of_the_same_names_sizes_and_times_is_told_from_another(tmp_path, kind):
    # As `tar --mtime=@0` writes two versions of a tree.
    write = write_zip if kind == "zip" else write_tar
    path = write(tmp_path / f"scans.{kind}", TREE)
    output = build_here(path, tmp_path / "out")
    found = path.stat()
    write(path, with_other_pixels(TREE))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(errors.UserError, match="source_listing: "), prepare(path, output):
        pass


def test_a_tar_whose_times_changed_is_the_same_source(tmp_path):
    path = write_tar(tmp_path / "scans.tar", TREE)
    output = build_here(path, tmp_path / "out")
    with tarfile.open(path, "w") as archive:
        for name, content in TREE.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 7
            archive.addfile(info, io.BytesIO(content))
    with prepare(path, output) as job:
        assert job is None


def test_what_decides_the_bytes_is_named_as_its_flag_is(archive, tmp_path):
    with prepare(archive, tmp_path / "out") as job:
        names = set(job.build.draft.options) - {"source_listing", "decoder"}
        assert {f"--{name}" for name in names} <= set(flag_names())


def test_what_does_not_decide_the_bytes_is_no_part_of_the_identity(archive, tmp_path):
    # A copy of an archive is the same source.
    moved = shutil.copy(archive, tmp_path / archive.name)
    flags = ["--max_reject_fraction=0.9", "--direct_num_workers=2", "--overwrite"]
    with prepare(archive, tmp_path / "a") as job, prepare(moved, tmp_path / "b", *flags) as other:
        assert other.build.draft.options == job.build.draft.options


def test_patients_in_folders_are_part_of_the_identity_of_their_dataset_alone(tmp_path):
    files = {
        f"CNV/patient{k}/{k}{end}.png": png(k) for k in range(4) for end in ("", "-p1", "-p2-p3")
    }
    source = write_tree(tmp_path / "in", files)
    in_path, in_name = ([rf"--group_regex={pattern}"] for pattern in (r"(patient\d)/", r"^(\d)"))
    with prepare(source, tmp_path / "out", *in_path) as job:
        assert job.build.draft.options["patient_in_path"]
    with prepare(source, tmp_path / "out", *in_name, "--overwrite") as job:
        assert "patient_in_path" not in job.build.draft.options
    packed = write_tar(tmp_path / "scans.tar.gz", files)
    output = build_here(packed, tmp_path / "packed", *in_path)
    with prepare(packed, output, *in_path) as job:
        assert job is None
