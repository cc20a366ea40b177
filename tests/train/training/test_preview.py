import tempfile

from marked_images import QUICK, flags, marked_data
from PIL import Image

from train import run

data = marked_data({"train": 40, "val": 10, "test": 12})


def test_a_preview_says_shapes_and_speed_and_draws_a_batch(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["--batch_size=10", "--epochs=2", "--preview", "--folds=2"]
    words += [f"--data={data}", f"--workdir={tmp_path / 'run'}", *flags(**QUICK)]
    assert run.main(words) == 0
    said = capsys.readouterr().out
    assert "cross-validation of 2 runs" in said
    assert "a batch: images 10x12x12x1 uint8, labels 10x4 float32" in said
    # A fold of two trains on 28 of 50 images: three steps an epoch, of two epochs.
    assert "minutes for all 12 steps" in said
    (picture,) = tmp_path.rglob("*.png")
    assert f"augmented images: {picture}\n" in said
    with Image.open(picture) as image:
        assert (image.size, image.mode) == ((8 * 12, 12), "L")  # of 10 images 8 fill a row
    assert not (tmp_path / "run").exists()
