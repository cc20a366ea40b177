import tempfile

import pytest
from builds import files_of
from marked_images import KERAS_ARRAY_WARNING, QUICK, flags, marked_data
from PIL import Image

from train import run

pytestmark = pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)

data = marked_data({"train": 40, "val": 10, "test": 12})


@pytest.mark.parametrize("more", [(), ("--folds=2", "--seeds=2")], ids=["one run", "folds"])
def test_a_preview_says_shapes_and_speed_and_draws_a_batch(
    more, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = files_of(data)
    words = [
        f"--data={data}",
        f"--workdir={tmp_path / 'run'}",
        *flags(**QUICK),
        "--epochs=2",
        *more,
    ]
    assert run.main([*words, "--batch_size=10", "--preview"]) == 0
    said = capsys.readouterr().out
    assert " parameters, " in said
    assert "a batch: images 10x12x12x1 uint8, labels 10x4 float32" in said
    num_steps = 3 if more else 4  # a fold of two trains on 28 of the 50 images
    assert f"seconds for the {num_steps} steps of an epoch" in said
    assert ("cross-validation of 4 runs" in said) == bool(more)
    assert files_of(data) == before
    (picture,) = files_of(tmp_path)  # there is no folder of the run
    assert f"an augmented batch: {tmp_path / picture}\n" in said
    with Image.open(tmp_path / picture) as image:
        # Of 10 images 8 fill a row.
        assert (image.size, image.mode) == ((8 * 12, 12), "L")
