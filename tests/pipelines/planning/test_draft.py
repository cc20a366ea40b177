import os
import shutil

import pytest
from builds import prepare
from image_files import kermany_archive, pack, scan_tree, scans_of

from pipelines import errors
from pipelines.options import FLAG_NAMES

TREE = scan_tree({"train": 1, "test": 1})
archive = scans_of(lambda: kermany_archive(TREE), "scans.zip")


def test_an_archive_with_other_content_of_the_same_size_and_time_is_another_source(tmp_path):
    path = pack(tmp_path / "scans.zip", TREE)
    with prepare(path, tmp_path / "out"):
        found = path.stat()
    pack(path, {name: content[:-1] + b"?" for name, content in TREE.items()})
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with pytest.raises(errors.UserError, match="source_listing: "), prepare(path, tmp_path / "out"):
        pass


def test_what_decides_the_bytes_is_named_as_its_flag_is(archive, tmp_path):
    with prepare(archive, tmp_path / "out") as job:
        names = set(job.build.draft.options)
        names -= {"source_listing", "decoder", "label_kind", "augmentation"}
        assert {f"--{name}" for name in names} <= set(FLAG_NAMES)


def test_what_does_not_decide_the_bytes_is_no_part_of_the_identity(archive, tmp_path):
    # A copy of an archive is the same source.
    moved = shutil.copy(archive, tmp_path / archive.name)
    flags = ["--max_reject_fraction=0.9", "--direct_num_workers=2", "--overwrite"]
    with prepare(archive, tmp_path / "a") as job, prepare(moved, tmp_path / "b", *flags) as other:
        assert other.build.draft.options == job.build.draft.options
