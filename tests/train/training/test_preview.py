import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    # A fold of two trains on 28 of 50 images.
    assert "seconds for the 3 steps of an epoch" in said
    (picture,) = tmp_path.rglob("*.png")
    assert f"an augmented batch: {picture}\n" in said
    with Image.open(picture) as image:
        assert (image.size, image.mode) == ((8 * 12, 12), "L")  # of 10 images 8 fill a row
    assert not (tmp_path / "run").exists()


def test_augmented_copies_do_not_count_as_training_images(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = shutil.copytree(data, tmp_path / "data") / "examples.parquet"
    table = pq.read_table(path)  # first 40 of train
    variants = pa.array(np.arange(len(table)) % 4 * (np.arange(len(table)) < 40), pa.int32())
    pq.write_table(table.append_column("variant", variants), path)
    words = [f"--data={path.parent}", f"--workdir={tmp_path / 'run'}", "--epochs=1", "--preview"]
    assert run.main([*words, *flags(**QUICK)]) == 0
    told = "10 training images of 12x12x1 and 30 augmented copies of them, 4 classes\n"
    assert told in capsys.readouterr().out
