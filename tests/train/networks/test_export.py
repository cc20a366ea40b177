import json

import keras
import numpy as np
import pytest
from marked_images import export_untrained

from train.machine.errors import TrainingError
from train.networks import export

SHAPE = (32, 33, 1)


SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in ("vgg16", "efficientnet_lite0")]


@pytest.fixture(scope="module", params=["convnet", *SLOW])
def exported(request, tmp_path_factory):
    """A network with all that can go wrong: random layers, ImageNet scaling, grey input."""
    folder = tmp_path_factory.mktemp("run")
    model, manifest = export_untrained(folder, SHAPE, model=request.param, weights="none")
    return folder / "export", manifest, model


def answer(model, images):
    return keras.ops.convert_to_numpy(model(images, training=False))


def test_each_form_predicts_the_same_of_any_number_of_images_without_this_project(exported):
    import tensorflow as tf

    directory, manifest, model = exported
    facts = json.loads((directory / "preprocessing.json").read_text())
    assert facts["preprocessing"] == manifest.preprocessing
    assert facts["label_names"] == list(manifest.label_names)
    assert facts["input"] == {"shape": list(SHAPE), "dtype": "uint8", "name": "image"}
    copy = keras.saving.load_model(directory / "model.keras")
    assert not any(type(layer).__module__.startswith("train") for layer in copy.layers)
    served = tf.saved_model.load(str(directory / "saved_model")).signatures["serving_default"]
    specification = served.structured_input_signature[1]["image"]
    assert (specification.dtype, specification.shape.as_list()) == (tf.uint8, [None, *SHAPE])
    for count in (1, 5):
        generator = np.random.default_rng(1)
        images = generator.integers(256, size=(count, *SHAPE), dtype=np.uint8)
        (probabilities,) = served(image=tf.constant(images)).values()
        for found in (probabilities, copy(images)):
            np.testing.assert_allclose(found, answer(model, images), atol=1e-6)


def test_a_copy_that_predicts_something_else_fails_the_run(exported, tmp_path, monkeypatch):
    _, manifest, model = exported
    real_load = keras.saving.load_model

    def load_damaged(path, **options):
        copy = real_load(path, **options)
        copy.get_layer(model.name.removesuffix("_classifier")).get_layer("logits").bias.assign(
            [9.0, 0, 0, 0]
        )
        return copy

    monkeypatch.setattr(keras.saving, "load_model", load_damaged)
    with pytest.raises(TrainingError, match=r"model\.keras, loaded again, predicts something"):
        export.export_model(model, tmp_path / "export", manifest, splits=["train"])
