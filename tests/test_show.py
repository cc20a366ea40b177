"""The contact sheet shows what is stored, under the right name."""

import shutil

import numpy as np
import pytest
from dataset_factory import change_column, cut_shards, stored
from PIL import Image

from tfrecord_io import manifest, show
from tfrecord_io.__main__ import main


def test_every_tile_is_a_stored_image_of_its_class(built_dataset, tmp_path):
    found = manifest.Manifest.load(built_dataset)
    height, width, _ = found.image_shape
    # Tiles of the stored size are not resized, so that pixels can be compared.
    sheet = show.contact_sheet(
        built_dataset, "train", num_per_class=2, tile_size=max(height, width)
    )
    output = tmp_path / "grid.png"
    assert main(["show", str(built_dataset), "--output", str(output)]) == 0
    with Image.open(output) as image:
        assert image.format == "PNG"
    images, labels, _ = stored(built_dataset)
    row_height = (sheet.height - 6) // found.num_classes
    for row in range(found.num_classes):
        top = 6 + row * row_height + 18
        tile = np.asarray(sheet)[top : top + height, 6 : 6 + width, 0]
        assert any((tile == image[:, :, 0]).all() for image in images[labels[:, row] == 1])


def change(name, value):
    return lambda table: change_column(table, name, lambda old: [value] * len(old))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_shards, "train-00000-of-00003.tfrecord ends before its record"),
        (change("label", "MORE"), "has the label 'MORE', which the manifest does not have"),
        (change("shard", "../beside.tfrecord"), "which the manifest does not have"),
        (change("row", 10**6), "ends before its record 1000000"),
    ],
)
def test_a_damaged_dataset_is_told_and_shows_no_other_file(
    damage, message, built_dataset, tmp_path, capsys
):
    folder = shutil.copytree(built_dataset, tmp_path / "data")
    damage(folder / "examples.parquet")
    assert main(["show", str(folder), "--output", str(tmp_path / "grid.png")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "code", "message"),
    [
        ("--output=grid.doc", 2, "must end in .png"),
        ("--num_per_class=-1", 2, "must be at least 1"),
        ("--split=dev", 1, "no split 'dev'"),
    ],
)
def test_a_sheet_that_cannot_be_drawn_is_refused(flag, code, message, built_dataset, capsys):
    assert main(["show", str(built_dataset), flag]) == code
    assert message in capsys.readouterr().err
