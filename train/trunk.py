"""Writes the frozen part of a network: python train/trunk.py --data OUT --model vgg16 ...

    python train/trunk.py --data OUT --model vgg16 --layer block4_pool --output trunk.keras

Layers that do not learn compute the same numbers in every epoch. `pipelines/extract_features.py`
runs them once over a dataset, and `train/run.py` trains the layers above them. Exit codes: 0 the
file is written, 2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tfrecord_io
from tfrecord_io import flags
from tfrecord_io.files import atomic_write
from tfrecord_io.trunk import FACTS_NAME, REST_NAME, Trunk, seen_path
from train import config, console, predict
from train.errors import ConfigError
from train.networks.options import APPLICATIONS, NetworkOptions

if TYPE_CHECKING:
    import keras

# Layers of `models.build_network` that belong to the head, in their order.
_HEAD_LAYERS = ("head", "dropout", "logits")


@console.command
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = flags.Parser(
        prog=flags.command("trunk"),
        description="Writes the frozen part of a network, up to a layer, as one Keras file.",
    )
    add = parser.add_argument
    add("--data", required=True, metavar="OUT", help="folder of a finished dataset")
    network = (
        "a network of keras.applications, such as vgg16 (a name that does not exist lists them), "
        "or the folder of a finished run"
    )
    add("--model", required=True, metavar="NAME|RUN", help=network)
    weights = "weights of a named network (default: imagenet, downloaded)"
    add("--weights", metavar="FILE", help=weights)
    layer = (
        "the last frozen layer, such as block4_pool of vgg16; pool, of all other networks: the "
        "mean of each channel"
    )
    add("--layer", required=True, metavar="NAME", help=layer)
    add("--output", required=True, metavar="FILE", help="such as trunk.keras")
    arguments = parser.parse_args(argv)
    given = {name: getattr(arguments, name) for name in ("data", "model", "layer", "weights")}
    try:
        with console.hide_native_noise():
            facts = write_trunk(output=Path(arguments.output), **given)
    except OSError as error:
        raise ConfigError(str(error)) from error
    shapes = ("x".join(map(str, shape)) for shape in (facts.image_shape, facts.feature_shape))
    print(f"{arguments.output}: {facts.model} up to {facts.layer}, {' → '.join(shapes)}")
    return 0


def write_trunk(
    data: str, model: str, layer: str, output: Path, *, weights: str | None = None
) -> Trunk:
    """Cuts a network at a layer and writes the part below it, with the rest beside it.

    The same network gives the same bytes, so its features are not computed again.

    Args:
        data: folder of the dataset; its images decide the shapes.
        model: name of a network of keras.applications, or folder of a finished run.
        layer: name of the last frozen layer.
        output: path of the file; it ends in .keras.
        weights: a weights file for a named network; None for ImageNet's weights.

    Returns:
        the facts that the file holds.

    Raises:
        ConfigError: if the network or the layer does not exist, the weights cannot be loaded, the
            network cannot be cut there, or its images have another shape.
        tfrecord_io.ManifestError: if the dataset cannot be used.
    """
    if output.suffix != ".keras":
        raise ConfigError(f"--output must end in .keras, received {output}")
    manifest = tfrecord_io.Manifest.load(data)
    if manifest.dtype != "uint8":
        raise ConfigError(f"--data {data}: expected uint8 images, received {manifest.dtype}")
    import keras

    from train.data import seen
    from train.networks.models import build_network

    if model in APPLICATIONS:
        chosen = NetworkOptions(model=model, weights=weights, dropout=0.0, head_units=0)
        # How many classes its head has does not matter.
        logits = build_network(chosen, image_shape=manifest.image_shape, num_classes=2).logits
        name, source = model, Path(weights).name if weights else "imagenet"
    else:
        logits = _load_run(Path(model))
        if weights:
            raise ConfigError("--weights is for a named network; a run has weights of its own")
        name, source = logits.name, f"run {Path(model).resolve().name}"
    if logits.input_shape[1:] != manifest.image_shape:
        raise ConfigError(
            f"--model {model} takes inputs of shape {logits.input_shape[1:]}, but the images of "
            f"{data} have {manifest.image_shape}; give the dataset that the run was trained on"
        )
    frozen, rest = cut(logits, layer)
    images = keras.Input(manifest.image_shape, dtype="uint8", name="image")
    pixels = keras.layers.Rescaling(1.0, dtype="float32", name="to_float")(images)
    trunk = keras.Model(images, frozen(pixels), name="trunk")
    facts = Trunk(
        model=name,
        layer=layer,
        weights=source,
        image_shape=manifest.image_shape,
        feature_shape=trunk.output_shape[1:],
        # Without the last one, which makes the map flat and belongs to no backbone.
        rest_layers=len(rest.layers) - 1 if rest.weights else 0,
    )
    beside = {
        REST_NAME: _zip(_members(rest)),
        FACTS_NAME: json.dumps(dataclasses.asdict(facts), indent=1).encode(),
    }
    with atomic_write(output) as file:
        file.write(_zip(_members(trunk) | beside))
    # Not in the file: who shares a trunk need not disclose keys and patients.
    seen_path(output).unlink(missing_ok=True)
    if model not in APPLICATIONS:
        seen.read_seen(Path(model)).of_trunk().write(seen_path(output), seen.digest_of(output))
    return facts


def cut(logits: keras.Model, layer: str) -> tuple[keras.Model, keras.Model]:
    """Cuts a network in two below its head.

    Args:
        logits: a network of `models.build_network`: float32 images → logits.
        layer: name of the last layer of the first part; it may be inside the backbone.

    Returns:
        (frozen, rest): float32 images → feature map [batch, height, width, channels], which is
        [batch, 1, 1, channels] if the layer's output is flat; feature map → flat features
        [batch, channels]. Both share the layers of `logits`.

    Raises:
        ConfigError: if there is no such layer below the head, its output is not a feature map,
            or data flows past it.
    """
    import keras

    names = [each.name for each in logits.layers]
    first_of_head = min(names.index(name) for name in _HEAD_LAYERS if name in names)
    body = keras.Model(logits.input, logits.layers[first_of_head].input)
    nested = [place for place, each in enumerate(body.layers) if isinstance(each, keras.Model)]
    is_nested = bool(nested) and layer not in names
    inside = body.layers[nested[0]] if is_nested else body
    known = [each.name for each in inside.layers]
    if layer not in known:
        raise ConfigError(
            f"--layer {layer}: {logits.name} has no such layer below its head; it has "
            f"{', '.join(known)}"
        )
    features = inside.get_layer(layer).output
    frozen = keras.Model(inside.input, features)
    try:
        if features is inside.output:
            same = keras.Input(features.shape[1:])
            rest = keras.Model(same, same)
        else:
            rest = keras.Model(features, inside.output)
    except ValueError:  # Keras' answer to a graph that needs more than one tensor
        raise ConfigError(
            f"--layer {layer}: {logits.name} cannot be cut there, because data flows past this "
            "layer; choose the last layer of a block"
        ) from None
    if is_nested:
        # Below the backbone are the layers that scale its input, above it the one that pools.
        frozen = keras.Model(body.input, frozen(body.layers[nested[0] - 1].output))
        rest = keras.Model(rest.input, body.layers[nested[0] + 1](rest.output))
    if features is body.output:
        grid = keras.layers.Reshape((1, 1, features.shape[1]))
        frozen = keras.Model(frozen.input, grid(frozen.output))
        pooled = keras.Input((1, 1, features.shape[1]))
        rest = keras.Model(pooled, keras.layers.Flatten()(pooled))
    if len(frozen.output.shape) != 4:
        raise ConfigError(
            f"--layer {layer}: expected a feature map of height, width and channels, or one number "
            f"for each channel; received shape {features.shape[1:]}"
        )
    return frozen, rest


def _load_run(run: Path) -> keras.Model:
    """Returns the network of a finished run, without the layers that make probabilities."""
    if not run.is_dir():
        raise ConfigError(
            f"--model {run}: expected the folder of a finished run, or a network of "
            f"keras.applications: {', '.join(sorted(APPLICATIONS))}"
        )
    name = config.load(run)["config"]["model"]
    model = predict.load_classifier(run).model
    if model.inputs[0].dtype != "uint8":
        raise ConfigError(f"--model {run}: expected a run on uint8 images")
    if name not in (layer.name for layer in model.layers):
        raise ConfigError(
            f"--model {run} was trained on features, so its frozen layers have been cut off; give "
            "a run on images"
        )
    return model.get_layer(name)


def _zip(members: Mapping[str, bytes]) -> bytes:
    """Returns a zip archive without dates."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return content.getvalue()


def _members(model: keras.Model) -> dict[str, bytes]:
    """Returns the members of a model's Keras file, without the date and with ids that repeat."""
    with tempfile.NamedTemporaryFile(suffix=".keras") as file:
        model.save(file.name)
        with zipfile.ZipFile(file.name) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(members["metadata.json"])
    facts.pop("date_saved", None)
    # Keras names the objects that layers share by their places in memory.
    numbers: dict[bytes, int] = {}
    config = re.sub(
        rb'(?<="shared_object_id": )\d+',
        lambda found: str(numbers.setdefault(found[0], len(numbers))).encode(),
        members["config.json"],
    )
    return members | {"metadata.json": json.dumps(facts).encode(), "config.json": config}


if __name__ == "__main__":
    sys.exit(main())
