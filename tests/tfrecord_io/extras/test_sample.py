"""Files of the source give the pixels of a dataset again, or the difference is told."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dataset_factory import change_column, change_json
from image_files import pack

from tfrecord_io.__main__ import main
from tfrecord_io.extras import sample
from tfrecord_io.format import manifest


def test_a_source_that_gives_other_pixels_is_found(dataset, source_tree, tmp_path):
    other = Path(shutil.copytree(source_tree, tmp_path / "other"))
    paths = pq.read_table(dataset / "examples.parquet")["path"].to_pylist()
    shutil.copy(other / paths[0], other / paths[1])
    (finding,) = sample.verify(dataset, source_input=other)
    assert paths[1] in finding.message
    (other / paths[1]).unlink()
    assert "has no file" in sample.verify(dataset, source_input=other)[0].message


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_an_archive_that_was_joined_to_another_does_not_agree(dataset, source_tree, tmp_path, kind):
    paths = [path for path in source_tree.rglob("*") if path.is_file()]
    files = {path.relative_to(source_tree).as_posix(): path.read_bytes() for path in paths}
    whole = pack(tmp_path / f"a.{kind}", files)
    assert sample.verify(dataset, source_input=whole) == []
    whole.write_bytes(whole.read_bytes() * 2)
    message = "(belong to no member that its index names|other data follows)"
    with pytest.raises(OSError, match=rf"cannot read .*{whole.name}: .*{message}"):
        sample.verify(dataset, source_input=whole)


def test_no_file_beside_the_source_is_read(dataset, source_tree, tmp_path):
    source = Path(shutil.copytree(source_tree, tmp_path / "in"))
    (tmp_path / "beside.jpeg").write_bytes(next(source.rglob("*.jpeg")).read_bytes())
    # It has the table's digest, which a stranger would not leave wrong.
    (dataset / "croissant.json").unlink()
    for path in ("../beside.jpeg", str(tmp_path / "beside.jpeg")):
        change_column(dataset / "examples.parquet", "path", lambda old, new=path: [new] * len(old))
        findings = sample.verify(dataset, source_input=source)
        assert [str(finding) for finding in findings] == [f"{source}: has no file {path}"]


def test_what_cannot_be_sampled_is_an_error(dataset, source_tree, capsys):
    whole, source = ["verify", str(dataset)], f"--source_input={source_tree}"
    assert main([*whole, source, "--num_samples=-1"]) == 2
    assert "--num_samples must be at least 0, received -1" in capsys.readouterr().err
    assert main([*whole, source, "--num_samples=0"]) == 0
    assert "; 0 images decoded again" in capsys.readouterr().out
    for flag in ("--num_samples=5", "--seed=0", "--names=names.parquet"):
        assert main([*whole, flag]) == 2
        assert f"{flag.partition('=')[0]} is about the sample of" in capsys.readouterr().err
    assert main([*whole, source, "--names=names.parquet"]) == 2
    assert "--names is for anonymous datasets" in capsys.readouterr().err
    change_json(dataset / manifest.FILE_NAME, preprocessing={}, source={})
    assert main(["verify", str(dataset), f"--source_input={source_tree}"]) == 2
    assert "and no source of kind unknown" in capsys.readouterr().err
