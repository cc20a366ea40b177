"""Small finished datasets that a network can learn, and the trainer's command on them."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from builds import environment, read_csv, run_command
from dataset_factory import change_json, write_examples
from PIL import Image

from tfrecord_io import Manifest
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.format.examples import FILE_NAME as EXAMPLES_FILE_NAME
from tfrecord_io.format.examples import GROUP
from tfrecord_io.format.groups import group_images
from tfrecord_io.format.kinds import CLASSES, LabelKind
from tfrecord_io.format.manifest import shard_name
from tfrecord_io.format.schema import RecordLayout, image_key
from tfrecord_io.format.statistics import PixelStatistics
from tfrecord_io.reading.mapped import MappedDataset

if TYPE_CHECKING:
    from train.machine.places import RunFolder
    from train.training.config import TrainConfig


OCT_NAMES = ("CNV", "DME", "DRUSEN", "NORMAL")

#: The smallest network and the bare loss: it learns the marked images in a few steps.
QUICK = {
    "model": "convnet", "precision": "float32", "optimizer": "adam", "schedule": "constant",
    "warmup_steps": 0, "ema_decay": 0.0, "augment": False, "mixup": 0.0, "label_smoothing": 0.0,
    "class_weight_power": 1.0,
}  # fmt: skip

#: A run of a few seconds on some dozens of these images.
SMALL_RUN = QUICK | {
    "epochs": 2, "replica_batch_size": 16, "seed": 1, "learning_rate": 0.01,
    "bootstrap_samples": 20,
}  # fmt: skip

#: The run on classes that many tests share, see conftest.py; its export has every form.
CLASS_RUN = SMALL_RUN | {"epochs": 3}

#: All that is random or has a state, on the smallest network. The ranges of the augmentation are
#: small, because the position of the bar says the class.
ALL_ON = QUICK | {
    "optimizer": "adamw", "weight_decay": 0.05, "schedule": "cosine", "warmup_steps": 3,
    "ema_decay": 0.9, "augment": True, "augment_strength": 0.5, "mixup": 0.4,
    "label_smoothing": 0.1, "class_weight_power": 0.5,
}  # fmt: skip


def write_marked_dataset(
    directory: Path,
    num_examples: Mapping[str, int],
    *,
    image_shape: tuple[int, int, int] = (12, 12, 1),
    label_names: tuple[str, ...] = OCT_NAMES,
    with_patients: bool = True,
    label_kind: LabelKind = CLASSES,
) -> Manifest:
    """Writes noise with a bright bar whose height is the class, so that networks learn it.

    Of several labels each has a bar, and half of the images have it.
    """
    generator, (height, width, channels) = np.random.default_rng(0), image_shape
    num_classes, bar = len(label_names), image_shape[0] // len(label_names)
    examples, rows = {}, []
    for split, total in num_examples.items():
        if label_kind.one_hot:
            drawn = generator.integers(num_classes, size=total)
            vectors = np.eye(num_classes, dtype=np.float32)[drawn]
        else:
            vectors = np.float32(generator.random((total, num_classes)) < 0.5)
        shard = []
        for index, vector in enumerate(vectors):
            pixels = generator.integers(100, size=image_shape, dtype=np.uint8)
            labels = np.flatnonzero(vector).tolist()
            for label in labels:
                top = label * height // num_classes
                pixels[top : top + bar] += 150
            text = label_kind.text_of([label_names[label] for label in labels])
            content, key = pixels.tobytes(), image_key(f"{split}/{index}")
            shard.append((content, vector, key))
            row = {"split": split, "shard": shard_name(split, 0, 1), "row": index, "key": key,
                   "label": text, "path": f"{split}/{text}/{index}.jpeg",
                   "pixels_xxh3": xxhash.xxh3_128_hexdigest(content)}  # fmt: skip
            rows.append(row | ({"patient": f"{split}-{index // 2}"} if with_patients else {}))
        examples[split] = [shard]
    counts = {"files": len(rows), "examples": len(rows), "ignored": {}, "rejects": 0, "copies": 0,
              "over_limit": 0}  # fmt: skip
    preprocessing = Preprocessing(height=height, width=width, channels=channels).to_dict()
    layout = RecordLayout(image_shape=image_shape, num_classes=num_classes, label_kind=label_kind)
    facts = {"name": "marked", "preprocessing": preprocessing, "counts": counts}
    manifest = write_examples(directory, layout, label_names, examples, **facts)
    pq.write_table(pa.Table.from_pylist(rows), directory / EXAMPLES_FILE_NAME)
    regroup(directory)
    return manifest


def regroup(directory: Path) -> None:
    """Writes the groups of the images, as a build finds them, into the table of examples."""
    path = directory / EXAMPLES_FILE_NAME
    table = pq.read_table(path)
    others = table.drop_columns([GROUP.name] if GROUP.name in table.column_names else [])
    names = group_images(others).names.cast(pa.string())
    pq.write_table(others.append_column(GROUP, names), path)


def marked_data(num_examples: Mapping[str, int], **options: Any) -> Any:
    """Returns a fixture: the folder of such a dataset, which a module's tests share."""

    @pytest.fixture(scope="module")
    def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("data")
        write_marked_dataset(path, num_examples, **options)
        return path

    return data


def flags(**fields: object) -> list[str]:
    """Returns the flags that set fields of a configuration; None leaves one at its default."""
    return [
        (f"--{name}" if value else f"--no-{name}")
        if isinstance(value, bool)
        else f"--{name}={value}"
        for name, value in fields.items()
        if value is not None
    ]


#: A program that runs the command `train` and saves the state after each step.
SAVING_EACH_STEP = """import sys
from train import run
from train.training import training_loop
training_loop.CHECKPOINT_SECONDS = 0
sys.exit(run.main())"""


def run_python(
    program: str, *arguments: object, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the text of a Python program to its end."""
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return run_command(words, environment(**variables), timeout)


def run_on_jax(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the text of a Python program on JAX to its end, which must be a good one."""
    result = run_python(program, *arguments, timeout=850, KERAS_BACKEND="jax")
    assert result.returncode == 0, result.stderr
    return result


def run_script(
    script: str, *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs one of the trainer's scripts as a user would, to its end."""
    words = [sys.executable, f"train/{script}.py", *map(str, arguments)]
    return run_command(words, environment(**variables), 600)


def train(data: Path, workdir: Path, **fields: object) -> int:
    """Runs `SMALL_RUN` with other fields in this process, without the slow forms of the export.

    Returns the exit code.
    """
    from train import run

    with without_saved_model():
        return run.main([f"--data={data}", f"--workdir={workdir}", *flags(**SMALL_RUN | fields)])


@contextlib.contextmanager
def without_saved_model() -> Iterator[None]:
    """Lets runs leave out the forms of the export that TensorFlow writes, which take seconds."""
    from train.networks import export

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_serve", lambda model, path, images: export.answer(model, images))
        yield


@contextlib.contextmanager
def claimed(config: TrainConfig, folder: Path | RunFolder, **how: bool) -> Iterator[Path]:
    """Claims the folder of a run as a training does."""
    from train.machine.places import RunFolder
    from train.training.claim import claim
    from train.training.session import open_sessions

    (session,) = open_sessions(config)
    run = folder if isinstance(folder, RunFolder) else RunFolder.at(folder)
    manifest, devices = session.data.manifest, session.devices
    with claim(run, session.config, manifest, devices, **how):
        yield run.path


def export_untrained(folder: Path, shape: tuple[int, int, int], **fields: object) -> tuple:
    """Writes a network with random weights as a run does; returns it and its dataset's manifest."""
    import keras

    from train.networks.export import export_model
    from train.networks.models import Pixels, build_network
    from train.training.config import TrainConfig

    manifest = write_marked_dataset(folder / "data", num_examples={"train": 4}, image_shape=shape)
    config = TrainConfig.of(data=str(folder / "data"), **fields)
    keras.utils.set_random_seed(0)
    statistics = PixelStatistics.from_images(np.zeros((1, *shape), np.uint8) + 100)
    stored = Pixels(shape=shape, statistics=statistics)
    model = build_network(config.network, stored, num_classes=4).model
    export_model(model, folder / "export", manifest, splits=["train"])
    return model, manifest


def evaluated(run: Path, data: Path, *words: str) -> int:
    """Measures a run on a dataset in this process; returns the exit code."""
    from train import evaluate

    few = () if any("bootstrap" in word for word in words) else ("--bootstrap_samples=20",)
    return evaluate.main([f"--model={run}", f"--data={data}", *few, *words])


def edited_run(run: Path, copy: Path, **facts: object) -> Path:
    """Copies a run with other facts in preprocessing.json; returns the copy."""
    shutil.copytree(run, copy)
    change_json(copy / "export" / "preprocessing.json", **facts)
    return copy


def picture_files(data: Path, folder: Path) -> list[str]:
    """Writes the first six test images of a dataset as files; returns their paths."""
    images, _ = MappedDataset(data, "test")[np.arange(6)]
    files = [str(folder / f"{index}.png") for index in range(len(images))]
    for image, file in zip(images, files, strict=True):
        Image.fromarray(image[..., 0]).save(file)
    return files


def predicted(
    capsys: pytest.CaptureFixture[str], run: Path, *files: object, code: int = 0
) -> list[dict[str, str]]:
    """Predicts files in this process; returns the rows of the CSV that it prints."""
    from train import predict

    capsys.readouterr()
    assert predict.main([f"--model={run}", "--format=csv", "--input", *map(str, files)]) == code
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of the table of predictions in a folder."""
    return read_csv(folder / "predictions.csv")


def metrics_of(folder: Path) -> dict[str, Any]:
    """Returns what was measured, in a run or in an evaluation."""
    return json.loads((folder / "metrics.json").read_text())


def arrays_of(path: Path, group: str = "") -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint by name."""
    with np.load(path) as arrays:
        names = [name for name in arrays.files if name.startswith(group) and name != "facts"]
        return {name: arrays[name] for name in names}


def check_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    """Requires that two checkpoints, or parts of them, are equal to the bit."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def history_of(workdir: Path) -> list[dict[str, float]]:
    """Returns the rows of a run's history."""
    return json.loads((workdir / "history.json").read_text())
