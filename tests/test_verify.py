"""Every kind of damage is found and names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dataset_factory import change_column, change_first_label
from image_files import write_tar, write_zip

from tfrecord_io import croissant, manifest, verify
from tfrecord_io.__main__ import main


@pytest.fixture
def dataset(built_dataset: Path, tmp_path: Path) -> Path:
    """A copy of a small built dataset, to damage."""
    return Path(shutil.copytree(built_dataset, tmp_path / "dataset"))


def _a_shard(dataset: Path) -> Path:
    return next(path for path in sorted(dataset.glob("train-*.tfrecord")) if path.stat().st_size)


def _rewrite_manifest(dataset: Path, change: Callable[[dict], None]) -> None:
    path = dataset / manifest.FILE_NAME
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def _messages(dataset: Path) -> dict[str, str]:
    return {finding.file_name: finding.message for finding in verify.verify(dataset)}


def test_a_dataset_as_built_has_no_finding(dataset: Path, capsys: pytest.CaptureFixture) -> None:
    assert verify.verify(dataset) == []
    assert main(["verify", str(dataset)]) == 0
    assert "matches its manifest" in capsys.readouterr().out


def test_odd_preprocessing_is_an_error_that_names_the_manifest(
    dataset: Path, source_tree: Path, capsys: pytest.CaptureFixture
) -> None:
    _rewrite_manifest(dataset, lambda content: content["preprocessing"].update(height=None))
    assert main(["verify", str(dataset), f"--source_input={source_tree}"]) == 1
    assert "manifest.json is damaged: its preprocessing" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["first_byte", "image", "last_byte"])
def test_one_flipped_bit_is_found_wherever_it_is(dataset: Path, place: str) -> None:
    shard = _a_shard(dataset)
    layout = manifest.Manifest.load(dataset).layout
    image = layout.features["image"].offset
    offset = {"first_byte": 0, "image": image, "last_byte": layout.stride - 1}
    _flip(shard, offset[place])
    findings = [finding for finding in verify.verify(dataset) if finding.file_name == shard.name]
    assert any("record 0" in finding.message for finding in findings)
    assert any("SHA-256" in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), "cut off"),
        (Path.unlink, "No such file"),
    ],
)
def test_a_shard_that_is_not_whole_is_found(
    dataset: Path, damage: Callable[[Path], None], message: str
) -> None:
    shard = _a_shard(dataset)
    damage(shard)
    findings = [finding for finding in verify.verify(dataset) if finding.file_name == shard.name]
    assert any(message in finding.message for finding in findings)


def test_a_shard_that_the_manifest_does_not_know_is_found(dataset: Path) -> None:
    shutil.copy(_a_shard(dataset), dataset / "train-00007-of-00008.tfrecord")
    assert _messages(dataset)["train-00007-of-00008.tfrecord"] == "is not in the manifest"


@pytest.mark.parametrize("label", [(0.5, 0.5), (1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0)])
def test_a_label_that_is_not_one_hot_is_found_though_all_checksums_fit(
    dataset: Path, label: tuple[float, float]
) -> None:
    change_first_label(dataset, label)
    assert any("not one-hot" in finding.message for finding in verify.verify(dataset))


@pytest.mark.parametrize(
    ("order", "file_name", "message"),
    [
        ((1, 0), manifest.EXAMPLES_FILE_NAME, "different keys"),
        ((0, 0), manifest.FILE_NAME, "occur in several examples"),
    ],
)
def test_records_that_are_swapped_or_stand_twice_are_found_by_their_keys(
    dataset: Path, order: tuple[int, int], file_name: str, message: str
) -> None:
    shard = _a_shard(dataset)
    stride = manifest.Manifest.load(dataset).layout.stride
    data = shard.read_bytes()
    first = b"".join(data[place * stride :][:stride] for place in order)
    shard.write_bytes(first + data[2 * stride :])
    found = [f.message for f in verify.verify(dataset) if f.file_name == file_name]
    assert any(message in text for text in found)


def _swap_counts(content: dict) -> None:
    counts = content["splits"]["train"]["label_counts"]
    first, second = counts
    counts[first], counts[second] = counts[second] + 1, counts[first] - 1


def _darken(content: dict) -> None:
    content["statistics"]["sums"][0] -= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swap_counts, "examples per class"),
        (_darken, "of split 'train', but the shards hold"),
        (lambda content: content["counts"].update(files=10_000), "counts 10000 files"),
        (lambda content: content["counts"].update(rejects=7), "counts 7 rejects, but names"),
        (lambda content: content.update(counts={}), "does not count the files"),
    ],
)
def test_what_is_wrong_in_the_manifest_is_found(
    dataset: Path, change: Callable[[dict], None], message: str
) -> None:
    _rewrite_manifest(dataset, change)
    assert message in _messages(dataset)[manifest.FILE_NAME]


def test_a_dataset_of_a_release_that_did_not_count_pixels_has_no_finding(dataset: Path) -> None:
    _rewrite_manifest(dataset, lambda content: content.pop("statistics"))
    assert verify.verify(dataset) == []


@pytest.mark.parametrize("name", ["examples.parquet", "rejects.csv", "sidecar"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_a_file_that_cannot_be_read_is_a_finding(
    dataset: Path, name: str, damage: Callable[[Path], None]
) -> None:
    path = _a_shard(dataset).with_suffix(".json") if name == "sidecar" else dataset / name
    damage(path)
    assert path.name in _messages(dataset)


@pytest.mark.parametrize("column", ["label", "split"])
def test_a_row_of_the_examples_table_that_contradicts_its_record_is_found(
    dataset: Path, column: str, capsys: pytest.CaptureFixture
) -> None:
    def change(values: list[str]) -> list[str]:
        other = next(value for value in values if value != values[2])
        return [*values[:2], other, *values[3:]]

    table = change_column(dataset / manifest.EXAMPLES_FILE_NAME, column, change)
    values = table[column].to_pylist()
    other = change(values)[2]
    (dataset / croissant.FILE_NAME).unlink()
    assert main(["verify", str(dataset)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        f"examples.parquet: {table['shard'][2]} has another {column} in 1 of its records, such as "
        f"{values[2]!r} for the key {table['key'][2]}, but {other!r} here"
    )


def _lose_a_row(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(0, len(table) - 1), path)


def _lose_a_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) > 1, "the built dataset should have a reject"
    path.write_text("\n".join(lines[:-1]) + "\n")


@pytest.mark.parametrize(
    ("name", "lose"),
    [(manifest.EXAMPLES_FILE_NAME, _lose_a_row), (manifest.REJECTS_FILE_NAME, _lose_a_line)],
)
def test_a_lost_row_of_a_table_is_found(
    dataset: Path, name: str, lose: Callable[[Path], None]
) -> None:
    lose(dataset / name)
    assert name in _messages(dataset)


def test_a_changed_sidecar_is_found(dataset: Path) -> None:
    sidecar = _a_shard(dataset).with_suffix(".json")
    sidecar.write_text(sidecar.read_text().replace('"num_bytes": ', '"num_bytes": 1'))
    assert sidecar.name in _messages(dataset)


def test_a_source_that_gives_other_pixels_is_found(
    dataset: Path, source_tree: Path, tmp_path: Path
) -> None:
    assert verify.verify(dataset, source_input=source_tree) == []
    other = Path(shutil.copytree(source_tree, tmp_path / "other"))
    paths = pq.read_table(dataset / manifest.EXAMPLES_FILE_NAME)["path"].to_pylist()
    shutil.copy(other / paths[0], other / paths[1])
    findings = verify.verify(dataset, source_input=other)
    assert [paths[1] in finding.message for finding in findings] == [True]
    (other / paths[1]).unlink()
    assert "has no file" in verify.verify(dataset, source_input=other)[0].message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("zip", "belong to no member that its index names"),
        ("tar", "other data follows"),
        ("tar.gz", "other data follows"),
    ],
)
def test_an_archive_that_was_joined_to_another_does_not_agree(
    dataset: Path, source_tree: Path, tmp_path: Path, kind: str, message: str
) -> None:
    files = {
        path.relative_to(source_tree).as_posix(): path.read_bytes()
        for path in source_tree.rglob("*")
        if path.is_file()
    }
    whole = (write_zip if kind == "zip" else write_tar)(tmp_path / f"a.{kind}", files)
    assert verify.verify(dataset, source_input=whole) == []
    whole.write_bytes(whole.read_bytes() * 2)
    with pytest.raises(OSError, match=rf"cannot read .*{whole.name}: .*{message}"):
        verify.verify(dataset, source_input=whole)


def test_findings_are_printed_a_line_each_and_exit_1(
    dataset: Path, capsys: pytest.CaptureFixture
) -> None:
    shard = _a_shard(dataset)
    _flip(shard, 3)
    assert main(["verify", str(dataset)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(": " in line for line in lines)
    assert any(line.startswith(shard.name) for line in lines)


def test_an_unfinished_dataset_says_so(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "run the same build command again" in capsys.readouterr().err


def test_a_negative_size_of_the_sample_is_refused(dataset, capsys):
    assert main(["verify", str(dataset), "--source_input=x.zip", "--num_samples=-1"]) == 2
    assert "--num_samples must be at least 0, received -1" in capsys.readouterr().err


def strings_in(value, path=()):
    """Yields the path of each string in a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from strings_in(value[name], (*path, name))


@pytest.mark.parametrize("command", ["verify", "audit", "index"])
def test_the_manifest_of_a_stranger_cannot_control_the_terminal(command, dataset, capsys):
    evil = "\x1b]0;a title\x07"
    text = (dataset / manifest.FILE_NAME).read_text()
    paths = [*strings_in(json.loads(text)), ("format_version",), ("splits",)]
    assert len(paths) > 30
    for path in paths:
        content = json.loads(text)
        place = content
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = {evil: place[path[-1]]} if path == ("splits",) else evil
        (dataset / manifest.FILE_NAME).write_text(json.dumps(content))
        main([command, str(dataset)])
        said = "".join(capsys.readouterr())
        assert not {"\x1b", "\x07"} & {*said}, path


def test_no_file_beside_the_source_is_read(dataset, source_tree, tmp_path):
    source = Path(shutil.copytree(source_tree, tmp_path / "in"))
    (tmp_path / "beside.jpeg").write_bytes(next(source.rglob("*.jpeg")).read_bytes())
    # It has the table's digest, which a stranger would not leave wrong.
    (dataset / "croissant.json").unlink()
    for path in ("../beside.jpeg", str(tmp_path / "beside.jpeg")):
        change_column(dataset / "examples.parquet", "path", lambda old, new=path: [new] * len(old))
        findings = verify.verify(dataset, source_input=source)
        assert [str(finding) for finding in findings] == [f"{source}: has no file {path}"]
