"""Tests of the synthetic source: what it draws, and the tree it writes."""

import hashlib
import io
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import builds
import numpy as np
import pytest
from PIL import Image

from pipelines import build_tfrecords, errors
from pipelines.sources.synthetic import scans
from pipelines.sources.synthetic import tree as tree_module
from pipelines.sources.synthetic.scans import LABEL_NAMES, draw_bscan, encode_jpeg
from pipelines.sources.synthetic.tree import (
    ARCHIVE_FOLDER,
    COMPLETE_MARKER,
    FILE_MTIME,
    SPLITS,
    split_sizes,
    write_tree,
)

FEW = 16


def image_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / ARCHIVE_FOLDER).rglob("*") if path.is_file())


def digests(directory: Path) -> dict[str, str]:
    """Hash of every file in the tree by its path within the directory."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in image_files(directory)
    }


def seconds_to_draw_one() -> float:
    """CPU seconds of this process for one scan of the commonest size, mean of several."""
    costs = []
    for patient in range(16):
        start = time.process_time()
        data = encode_jpeg(draw_bscan("DME", patient, 1, 0))
        seconds = time.process_time() - start
        with Image.open(io.BytesIO(data)) as image:
            if image.size == (512, 496):
                costs.append(seconds)
    return sum(costs) / len(costs)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tree of FEW images; tests only read it."""
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder, FEW, seed=3)
    return folder


@pytest.fixture(scope="module")
def plan() -> list[tree_module._ImageTask]:
    """The plan of a dataset large enough for proportions to show; nothing is drawn."""
    return tree_module._plan_tree(4000, seed=0)


# Scans


@pytest.mark.parametrize("label", LABEL_NAMES)
def test_a_scan_is_uint8_grey_of_a_size_that_the_archive_has(label: str) -> None:
    pixels = draw_bscan(label, 4, 2, 0)
    assert pixels.dtype == np.uint8
    known = {(496, 512), (496, 768), (496, 1024), (496, 1536), (512, 512), (496, 384)}
    assert pixels.shape in known


def test_a_scan_depends_on_its_arguments_and_on_nothing_else() -> None:
    first = draw_bscan("CNV", 4, 2, 0)
    draw_bscan("DME", 9, 9, 9)
    np.testing.assert_array_equal(draw_bscan("CNV", 4, 2, 0), first)


@pytest.mark.parametrize(
    "other", [("DME", 4, 2, 0), ("CNV", 5, 2, 0), ("CNV", 4, 3, 0), ("CNV", 4, 2, 1)]
)
def test_each_argument_changes_the_scan(other: tuple[str, int, int, int]) -> None:
    assert not np.array_equal(draw_bscan(*other), draw_bscan("CNV", 4, 2, 0))


def test_a_scan_shows_a_dark_vitreous_a_bright_retina_and_a_fading_back() -> None:
    scans = (draw_bscan("NORMAL", patient, 1, 0) for patient in range(20))
    # White corners of levelled scans would blur the three bands.
    plain = [scan for scan in scans if (scan == 255).mean() == 0][:4]
    assert len(plain) == 4
    for scan in plain:
        rows = scan.mean(axis=1)
        assert rows.max() > 3 * rows[:10].mean()
        assert rows.max() > 3 * rows[-10:].mean()


def test_some_scans_are_levelled_with_white_corners_and_some_are_not() -> None:
    white = [(draw_bscan("NORMAL", patient, 1, 0) == 255).any() for patient in range(16)]
    assert 2 <= sum(white) <= 14


def test_disease_changes_the_scan_where_severity_allows_it() -> None:
    x_mm = np.linspace(-3, 3, 512)

    def lesions(label: str, severity: float) -> scans._Lesions:
        return scans._draw_lesions(scans.generator(1), label, x_mm, severity, 0.0)

    assert lesions("NORMAL", 1.0).elevation.max() < 4
    assert not lesions("NORMAL", 1.0).spots
    assert lesions("DRUSEN", 1.0).elevation.max() > 6
    assert lesions("CNV", 1.0).elevation.max() > 6
    assert len(lesions("DME", 1.0).spots) >= 3
    assert lesions("DME", 1.0).swelling.max() > 1.1
    for label in ("CNV", "DRUSEN"):
        assert lesions(label, 0.0).elevation.max() < lesions(label, 1.0).elevation.max() / 2


def test_no_size_belongs_to_one_class_alone() -> None:
    weights = np.array([scans._FORMAT_WEIGHTS[label] for label in LABEL_NAMES])
    shares = weights / weights.sum(axis=0)
    assert (weights > 0).all()
    assert shares.max() < 0.8


def test_a_file_is_a_grey_jpeg_of_a_realistic_size() -> None:
    for patient in range(5):
        data = encode_jpeg(draw_bscan("NORMAL", patient, 1, 0))
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.mode) == ("JPEG", "L")
            bits_a_pixel = 8 * len(data) / (image.width * image.height)
        assert 0.8 < bits_a_pixel < 4  # The real ones have 1 to 3.


def test_drawing_and_encoding_stays_cheap() -> None:
    # About 0.015 s; the bound only catches a lost vectorisation, on a busy machine too.
    assert seconds_to_draw_one() < 0.15


# Shares and the plan


@pytest.mark.parametrize("num_examples", [12, 13, 47, 100, 999, 84_484])
def test_shares_add_up_and_none_is_empty(num_examples: int) -> None:
    sizes = split_sizes(num_examples)
    assert set(sizes) == {(split, label) for split in SPLITS for label in LABEL_NAMES}
    assert sum(sizes.values()) == num_examples
    assert min(sizes.values()) >= 1


def test_train_is_out_of_balance_as_the_real_one_and_val_and_test_are_balanced() -> None:
    sizes = split_sizes(10_000)
    assert sizes["train", "CNV"] / sizes["train", "DRUSEN"] == pytest.approx(37205 / 8616, rel=0.01)
    for split in ("val", "test"):
        assert {sizes[split, label] for label in LABEL_NAMES} == {250}


@pytest.mark.parametrize("num_examples", [11, 0, -5])
def test_too_few_examples_are_refused_with_advice(num_examples: int, tmp_path: Path) -> None:
    with pytest.raises(
        errors.UserError, match=f"at least 12.* got {num_examples}; choose a larger"
    ):
        write_tree(tmp_path, num_examples, seed=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("num_examples", [12, 50, 4000])
def test_the_plan_has_the_shares_asked_for(num_examples: int) -> None:
    tasks = tree_module._plan_tree(num_examples, seed=5)
    assert Counter((t.split, t.label) for t in tasks) == split_sizes(num_examples)


def test_every_planned_image_has_a_path_of_its_own(plan: list[tree_module._ImageTask]) -> None:
    assert len({(t.label, t.patient, t.index) for t in plan}) == 4000


def test_no_patient_is_in_two_splits(plan: list[tree_module._ImageTask]) -> None:
    splits = defaultdict(set)
    for task in plan:
        splits[task.patient].add(task.split)
    assert len(splits) > 500
    assert {len(found) for found in splits.values()} == {1}


def test_patients_have_several_images_and_a_few_have_two_classes(
    plan: list[tree_module._ImageTask],
) -> None:
    images = Counter((t.patient, t.label) for t in plan)
    assert min(images.values()) == 1
    assert 8 <= max(images.values()) <= 12
    classes = Counter(patient for patient, _ in images)
    under_two = sum(count == 2 for count in classes.values())
    assert max(classes.values()) == 2
    assert 0.01 < under_two / len(classes) < 0.15


def test_another_seed_plans_other_patients(plan: list[tree_module._ImageTask]) -> None:
    other = tree_module._plan_tree(4000, seed=1)
    assert len({t.patient for t in plan} & {t.patient for t in other}) < 100


# The tree


def test_the_tree_has_the_real_archives_shape(tree: Path) -> None:
    assert (tree / "OCT2017 ").is_dir()
    paths = [path.relative_to(tree).as_posix() for path in image_files(tree)]
    assert len(paths) == FEW
    for path in paths:
        folder, split, label, name = path.split("/")
        assert (folder, split in SPLITS, label in LABEL_NAMES) == ("OCT2017 ", True, True)
        prefix, patient, index = name.removesuffix(".jpeg").split("-")
        assert (prefix, patient.isdigit(), index.isdigit()) == (label, True, True)


def test_a_file_holds_the_scan_that_its_name_says(tree: Path) -> None:
    path = image_files(tree)[0]
    label, patient, index = path.stem.split("-")
    assert path.read_bytes() == encode_jpeg(draw_bscan(label, int(patient), int(index), 3))


def test_all_files_have_one_constant_time(tree: Path) -> None:
    assert {path.stat().st_mtime for path in image_files(tree)} == {FILE_MTIME}


def test_workers_change_no_byte(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "_CHUNK_SIZE", 5)  # So that both workers get some.
    monkeypatch.setattr(tree_module, "_SMALLEST_PARALLEL_RUN", FEW)
    monkeypatch.setattr(tree_module.os, "sched_getaffinity", lambda _: {0, 1})
    reported: list[int] = []
    write_tree(tmp_path, FEW, seed=3, progress=reported.append)
    assert digests(tmp_path) == digests(tree)
    assert sorted(reported) == [1, 5, 5, 5]


def test_a_finished_tree_is_left_as_it_is(tree: Path) -> None:
    before = {path: path.stat().st_ino for path in image_files(tree)}
    reported: list[int] = []
    write_tree(tree, FEW, seed=3, progress=reported.append)
    assert not reported
    assert {path: path.stat().st_ino for path in image_files(tree)} == before


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.unlink(), lambda path: path.write_bytes(b"not a scan")],
    ids=["missing", "touched"],
)
def test_a_tree_that_is_no_longer_whole_is_drawn_again(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    write_tree(tmp_path, 12, seed=3)
    before = digests(tmp_path)
    damage(image_files(tmp_path)[4])
    write_tree(tmp_path, 12, seed=3)
    assert digests(tmp_path) == before


def interrupt_after(num_images: int) -> Callable[[int], None]:
    """A progress callback that ends the run, as Ctrl-C would, once so many are written."""
    written = 0

    def count(newly: int) -> None:
        nonlocal written
        written += newly
        if written >= num_images:
            raise KeyboardInterrupt

    return count


def test_no_half_drawn_tree_is_ever_seen_and_the_next_run_draws_a_whole_one(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_module, "_CHUNK_SIZE", 5)
    with pytest.raises(KeyboardInterrupt):
        write_tree(tmp_path, FEW, seed=3, progress=interrupt_after(10))
    assert not image_files(tmp_path)
    write_tree(tmp_path, FEW, seed=3)
    assert digests(tmp_path) == digests(tree)
    assert sorted(path.name for path in tmp_path.iterdir()) == [COMPLETE_MARKER, ARCHIVE_FOLDER]


def test_nothing_of_other_settings_remains(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, 13, seed=8)
    before = digests(tmp_path)
    monkeypatch.setattr(tree_module, "_CHUNK_SIZE", 5)
    with pytest.raises(KeyboardInterrupt):
        write_tree(tmp_path, FEW, seed=3, progress=interrupt_after(5))
    assert digests(tmp_path) == before
    write_tree(tmp_path, FEW, seed=3)
    assert digests(tmp_path) == digests(tree)


def test_files_of_an_older_generator_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path, 12, seed=3)
    monkeypatch.setattr(tree_module, "GENERATOR_VERSION", tree_module.GENERATOR_VERSION + 1)
    reported: list[int] = []
    write_tree(tmp_path, 12, seed=3, progress=reported.append)
    assert sum(reported) == 12


def test_the_marker_says_what_the_tree_was_made_from(tree: Path) -> None:
    marker = json.loads((tree / COMPLETE_MARKER).read_text())
    assert set(marker) == {"generator_version", "num_examples", "pillow_version", "seed"}
    assert (marker["num_examples"], marker["seed"]) == (FEW, 3)


def test_a_second_process_that_would_draw_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    flags = ["--source=synthetic", "--num_examples=12", "--image_size=8", builds.IN_MEMORY]
    argv = [*flags, f"--output={tmp_path / 'out'}", f"--download_dir={tmp_path}"]
    seen = []

    def build_meanwhile(_: int) -> None:
        with pytest.raises(errors.UserError, match=rf"process id {os.getpid()}\) is drawing into"):
            build_tfrecords.build(argv)
        seen.append(True)

    folder = tmp_path / "synthetic-12-seed-0"
    write_tree(folder, 12, 0, progress=build_meanwhile)
    assert seen
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    build_tfrecords.build(argv)


def test_a_tree_that_is_not_ours_is_refused_and_kept(tmp_path: Path) -> None:
    real = tmp_path / ARCHIVE_FOLDER / "train" / "CNV" / "CNV-1-1.jpeg"
    real.parent.mkdir(parents=True)
    real.write_bytes(b"somebody's only copy")
    with pytest.raises(FileExistsError, match="not written by the synthetic source"):
        write_tree(tmp_path, 12, seed=0)
    assert real.read_bytes() == b"somebody's only copy"
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE_FOLDER]
