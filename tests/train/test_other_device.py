"""What a network flags as unlike the scans that it has learned."""

import numpy as np
import pytest
from builds import build_here
from image_files import encoded, write_tree
from marked_images import KERAS_ARRAY_WARNING, train
from sklearn.metrics import roc_auc_score

from train.results.classifier import answer_images, load_classifier

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(KERAS_ARRAY_WARNING)]

SIDE = 24
LABELS = ("CNV", "DME", "NORMAL")
NUM_SCANS = {"train": 240, "val": 60, "test": 320}


def drawn_scan(label, generator):
    """Returns layers of a retina, uint8 [24, 24]; CNV lifts the lowest, DME swells the highest."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    surface = generator.uniform(5, 9) + 1.5 * np.sin(columns / 8 + generator.uniform(0, 6))
    lesion = 4 * np.exp(-(((columns - generator.uniform(6, 18)) / 3) ** 2))
    depth, bottom = rows - surface, 11 - lesion * (label == "CNV")
    top = -lesion * (label == "DME")
    layers = [depth < top, depth < top + 3, depth < bottom - 3, depth < bottom]
    grey = np.select(layers, [15, 150, 70, 200], 50)
    speckle = generator.gamma(16, 1 / 16, grey.shape)
    return np.clip(grey * speckle + generator.normal(0, 6, grey.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def scans():
    """Drawn scans and their labels by split, uint8 [num_scans, 24, 24, 1] and int [num_scans]."""
    generator = np.random.default_rng(0)
    drawn = {}
    for split, count in NUM_SCANS.items():
        labels = np.arange(count) % len(LABELS)
        images = np.stack([drawn_scan(LABELS[label], generator) for label in labels])
        drawn[split] = images[..., None], labels
    return drawn


@pytest.fixture(scope="module")
def run(scans, tmp_path_factory):
    files = {
        f"{split}/{LABELS[label]}/{LABELS[label]}-{split}{index}-1.png": encoded(image[..., 0])
        for split, (images, labels) in scans.items()
        for index, (image, label) in enumerate(zip(images, labels, strict=True))
    }
    folder = tmp_path_factory.mktemp("other_device")
    tree = write_tree(folder / "scans", files)
    data = build_here(tree, folder / "data", f"--image_size={SIDE}")
    assert (
        train(
            data,
            folder / "run",
            model="small_resnet",
            epochs=14,
            schedule="cosine",
            learning_rate=2e-3,
        )
        == 0
    )
    return folder / "run"


def test_noise_and_scans_upside_down_are_unlike_those_of_other_patients(run, scans):
    images, _ = scans["test"]
    classifier = load_classifier(run)
    noise = np.random.default_rng(1).integers(256, size=images.shape, dtype=np.uint8)
    known, noise, turned = (
        answer_images(classifier, each)[1] for each in (images, noise, images[:, ::-1])
    )
    assert np.mean(known > classifier.known[0].limit) < 0.12
    for others in (noise, turned):
        is_other = np.repeat([False, True], len(known))
        assert roc_auc_score(is_other, np.concatenate([known, others])) > 0.95
