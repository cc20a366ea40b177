"""Tests of the synthetic source: what it draws, and the tree it writes."""

import re
import zlib
from collections import Counter

import numpy as np
import pytest
from builds import files_of

from pipelines.sources import synthetic

FEW = 13


@pytest.fixture
def quick(monkeypatch):
    """Draws tiny scans that differ by their arguments, for tests of the tree."""

    def draw(*scan):
        return np.full((2, 2), zlib.crc32(repr(scan).encode()) % 256, np.uint8)

    monkeypatch.setattr(synthetic, "draw_bscan", draw)


@pytest.mark.parametrize("num_examples", [12, 13, 50, 4000])
@pytest.mark.usefixtures("quick")
def test_a_tree_has_the_archives_shape_and_proportions_and_one_time(tmp_path, num_examples):
    synthetic.write_tree(tmp_path / "tree", num_examples, seed=5)
    scans = [*(tmp_path / "tree" / synthetic.ARCHIVE_FOLDER).rglob("*.jpeg")]
    assert len(scans) == num_examples
    assert {path.stat().st_mtime for path in scans} == {synthetic.FILE_MTIME}
    assert all(re.fullmatch(rf"{path.parent.name}-\d+-\d+\.jpeg", path.name) for path in scans)
    sizes = Counter((path.parent.parent.name, path.parent.name) for path in scans)
    assert set(sizes) == {
        (split, label) for split in synthetic.SPLITS for label in synthetic.LABEL_NAMES
    }
    if num_examples == 4000:
        assert 4 < sizes["train", "CNV"] / sizes["train", "DRUSEN"] < 4.6  # 37,205 to 8,616
        assert {
            sizes[split, name] for split in synthetic.SPLITS[1:] for name in synthetic.LABEL_NAMES
        } == {100}


@pytest.mark.usefixtures("quick")
def test_the_number_of_cores_changes_no_byte_and_a_whole_tree_is_kept(tmp_path, monkeypatch):
    found = []
    for num_cores in (1, 3):
        monkeypatch.setattr(synthetic.os, "sched_getaffinity", lambda _, n=num_cores: set(range(n)))
        synthetic.write_tree(folder := tmp_path / str(num_cores), FEW, seed=3)
        with monkeypatch.context() as patch:  # the second time, all is there
            patch.setattr(synthetic, "_plan", None)
            synthetic.write_tree(folder, FEW, seed=3)
        found.append(files_of(tmp_path / str(num_cores)))
    assert found[0] == found[1]
