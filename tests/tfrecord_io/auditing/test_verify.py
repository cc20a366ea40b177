"""Every kind of damage is found and names the file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from dataset_factory import change_column, change_first_label
from s3_server import BUCKET
from source_files import upload

from tfrecord_io.__main__ import main
from tfrecord_io.auditing import audit, verify
from tfrecord_io.format import manifest
from tfrecord_io.terminal.flags import command


def a_shard(dataset):
    return next(path for path in sorted(dataset.glob("train-*.tfrecord")) if path.stat().st_size)


def file_named(name):
    return lambda dataset: dataset / name


MANIFEST, EXAMPLES, REJECTS = map(file_named, ("manifest.json", "examples.parquet", "rejects.csv"))


def test_a_dataset_as_built_has_no_finding(dataset, capsys):
    assert main(["verify", str(dataset)]) == 0
    assert "matches its manifest" in capsys.readouterr().out


def test_a_dataset_in_a_bucket_is_checked_as_its_copy_on_a_disk(dataset, s3):
    url = f"s3://{BUCKET}/data"
    for num_wrong in (0, 1):
        upload(dataset, url)
        assert verify.verify(url) == (found := verify.verify(dataset))
        assert len(found) == num_wrong
        assert audit.audit(url).to_dict() == audit.audit(dataset).to_dict()
        shutil.copy(a_shard(dataset), dataset / "stranger.tfrecord")


@pytest.mark.parametrize("place", ["first byte", "image", "last byte"])
def test_one_flipped_bit_is_found_wherever_it_is(dataset, place, capsys):
    layout = manifest.Manifest.load(dataset).layout
    image = layout.features["image"].offset
    data = bytearray(a_shard(dataset).read_bytes())
    data[{"first byte": 0, "image": image, "last byte": layout.stride - 1}[place]] ^= 1
    a_shard(dataset).write_bytes(data)
    assert main(["verify", str(dataset)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{a_shard(dataset).name}: record 0: its length or its bytes")
    assert "SHA-256" in lines[1]


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-10])


def garble(path):
    path.write_bytes(b"{}")


def lose_a_line(path):
    lines = path.read_text().splitlines()
    assert len(lines) > 1, "the built dataset should have a reject"
    path.write_text("\n".join(lines[:-1]) + "\n")


def with_label(*label):
    return lambda path: change_first_label(path.parent, label)


def with_first_records(*order):
    def change(path):
        stride, data = manifest.Manifest.load(path.parent).layout.stride, path.read_bytes()
        first = b"".join(data[place * stride :][:stride] for place in order)
        path.write_bytes(first + data[2 * stride :])

    return change


def swap_counts(content):
    counts = content["splits"]["train"]["label_counts"]
    first, second = counts
    counts[first], counts[second] = counts[second] + 1, counts[first] - 1


def turn(content):
    """Gives the images another shape of the same length, wherever it stands."""
    height, width, channels = content["image"]["shape"]
    content["image"]["shape"] = [2 * height, width // 2, channels]
    content["preprocessing"] |= {"height": 2 * height, "width": width // 2}
    content["options"]["image_size"] = content["image"]["shape"][:2]


def edited(change):
    def damage(path):
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return damage


CHANGES = [
    (swap_counts, "examples per class"),
    (turn, "was changed"),
    (lambda content: content["preprocessing"].update(fit="stretch"), "was changed: .* fit"),
    (lambda content: content["options"].update(seed=99), "was changed"),
    (lambda content: content["counts"].update(files=10_000), "counts 10000 files"),
    (lambda content: content.update(counts={}), "cannot be read"),
]


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (a_shard, cut_off, "cut off"),
        # All checksums fit.
        *((a_shard, with_label(*label), "not one-hot")
          for label in ((0.5, 0.5), (1.0, 1.0), (0.0, 0.0), (float("nan"), 1.0))),
        *((a_shard, with_first_records(*order), "record 1 is") for order in ((1, 0), (0, 0))),
        *((file, Path.unlink, "cannot be read") for file in (a_shard, EXAMPLES, REJECTS)),
        *((file, garble, "") for file in (EXAMPLES, REJECTS)),
        (REJECTS, lose_a_line, "has the reasons"),
        (file_named("train-00007-of-00008.tfrecord"), garble, "is not in the manifest"),
        *((MANIFEST, edited(change), message) for change, message in CHANGES),
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_or_unknown_is_found(dataset, file, damage, message):
    path = file(dataset)
    damage(path)
    said = " ".join(line for line in verify.verify(dataset) if line.startswith(path.name))
    assert said
    assert re.search(message, said)


@pytest.mark.parametrize("column", ["label", "row", "key", "pixels_xxh3"])
def test_a_row_of_the_examples_table_that_contradicts_its_record_is_found(dataset, column):
    def change(values):
        other = next(value for value in values if value != values[2])
        return [*values[:2], other, *values[3:]]

    change_column(dataset / "examples.parquet", column, change)
    (found,) = verify.verify(dataset)
    assert ("one row for each" if column == "row" else "record 2 is") in found


def test_what_cannot_be_checked_is_an_error(source_tree, tmp_path, capsys):
    (tmp_path / "run" / "export").mkdir(parents=True)
    for words, code, message in (
        ((tmp_path / "nothing",), 1, "does not exist"),
        ((tmp_path / "run",), 1, "this is a run, not a dataset"),
        ((source_tree,), 1, f"build it first: {command('build')} --input {source_tree}"),
    ):
        assert main(["verify", *map(str, words)]) == code
        assert message in capsys.readouterr().err
