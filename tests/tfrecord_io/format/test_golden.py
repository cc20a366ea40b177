"""Format version 1, held by a committed dataset.

`testdata/golden_v1` was made by

    python pipelines/build_tfrecords.py --source directory --input tests/testdata/golden_source \
        --output golden --name golden --image_size 10x8 --num_shards 2 --fit stretch

from which the manifest and the shards were kept. A release that breaks this test must write
another format version. The source is PNG, and of the stored size, so that no other version of a
decoder or a filter can change a pixel.
"""

import json

import numpy as np
import pytest
from builds import IN_MEMORY, ROOT, arguments
from dataset_factory import parsed_by_tensorflow, stored
from PIL import Image

from pipelines import build_tfrecords
from tfrecord_io import Manifest
from tfrecord_io.format.schema import image_key

SOURCE = ROOT / "tests" / "testdata" / "golden_source"
GOLDEN = ROOT / "tests" / "testdata" / "golden_v1"

#: The rest depends on the times of the files, on software versions, or grows with the program.
STABLE = ("format_version", "name", "image", "label_names", "record", "splits", "preprocessing")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    output = tmp_path_factory.mktemp("golden") / "out"
    flags = ("--name=golden", "--image_size=10x8", "--num_shards=2", "--fit=stretch", IN_MEMORY)
    build_tfrecords.build(arguments(SOURCE, output, *flags))
    return output


def test_a_build_writes_the_shards_it_always_wrote(built):
    expected = {path.name: path.read_bytes() for path in GOLDEN.glob("*.tfrecord")}
    assert len(expected) == 4
    assert {path.name: path.read_bytes() for path in built.glob("*.tfrecord")} == expected


def test_a_build_writes_the_manifest_it_always_wrote(built):
    expected, found = (
        json.loads((folder / "manifest.json").read_text()) for folder in (GOLDEN, built)
    )
    assert {name: found[name] for name in STABLE} == {name: expected[name] for name in STABLE}
    for name in ("files", "examples", "rejects", "copies", "over_limit"):
        assert found["counts"][name] == expected["counts"][name]


def test_an_old_manifest_is_still_read():
    found = Manifest.load(GOLDEN)
    assert found.num_examples == 12
    assert found.split("train").label_counts == (3, 3)
    assert found.layout.stride == 238


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_tensorflow_reads_it_with_no_help_of_ours_and_numpy_by_stride_and_offsets_alone(split):
    expected = {}
    for path in SOURCE.glob(f"{split}/*/*.png"):
        with Image.open(path) as image:
            pixels, name = np.asarray(image), path.parent.name
        label = [float(name == "CNV"), float(name == "NORMAL")]
        expected[image_key(path.relative_to(SOURCE).as_posix())] = (pixels.tobytes(), label)
    parsed = parsed_by_tensorflow(GOLDEN.glob(f"{split}-*.tfrecord"), num_classes=2)
    assert {
        one["key"].decode(): (one["image"], one["label"].tolist()) for one in parsed
    } == expected
    examples = zip(*stored(GOLDEN, split), strict=True)
    assert {key: (image.tobytes(), label.tolist()) for image, label, key in examples} == expected
