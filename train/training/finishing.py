"""After the training: exports the weights that were kept, and measures what they predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train.data.examples import read_examples
from train.data.parts import Part
from train.networks import features
from train.networks.models import Network
from train.results import metrics, report, run_results
from train.results.predictions import Predictions
from train.run_folder import BEST_NAME, HISTORY_NAME, write_json, write_metrics
from train.training import callbacks, checkpoint, export
from train.training.progress import Progress
from train.training.run_setup import RunSetup
from train.training.steps import make_steps


def finish(setup: RunSetup, progress: Progress, best: Sequence[np.ndarray]) -> dict[str, Any]:
    """Exports the weights that were kept, evaluates them, and writes the results.

    Both use the exported network, in float32 whatever the training used, so the report is exactly
    what the export and `predict` compute.

    Args:
        setup: of the run.
        progress: of the finished training.
        best: values of the network's variables in the epoch to keep.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        TrainingError: if the network's answers are not numbers.
        ExportError: if an exported form does not give the network's answers.
        MetricsError: if the answers cannot be measured.
    """
    setup = dataclasses.replace(setup, devices=setup.devices.alone())
    manifest, parts, task, config = setup.manifest, setup.parts, setup.task, setup.config
    network = _build_final(setup, best)
    val = temperature = None
    if parts.val is not None:
        val = _predict(setup, network, parts.val)
        # What is reported of a part must not be fitted to it.
        if parts.test is not None and task.gives_probabilities:
            temperature = task.fit_temperature(*val)
            network = _build_final(setup, best, temperature)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if setup.devices.is_chief:
        _export(setup, network, progress)
    results: dict[str, Any] = {
        "split": parts.evaluated.name if parts.evaluated else None,
        "best_epoch": progress.best_epoch,
        "steps": progress.step,
    }
    predictions = None
    if parts.evaluated is not None:
        predictions = _predictions_of(setup, network, parts.evaluated, temperature)
    if not setup.devices.is_chief:
        return results
    if predictions is not None:
        results |= run_results.measure(predictions, manifest.label_names, config)
    if predictions is not None and temperature is not None and val is not None:
        results |= run_results.measure_calibration(
            predictions,
            val=val,
            temperature=temperature,
            label_names=manifest.label_names,
            config=config,
        )

    def predict_images(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(network.model(images, training=False))

    run_results.write_results(
        setup.workdir,
        manifest=manifest,
        config=config,
        results=results,
        predictions=predictions,
        # Pictures of the mistakes need images.
        predict=predict_images if setup.trunk is None else None,
        history=progress.history,
    )
    # Again: a run that goes on from its last checkpoint does not repeat the epoch, and a kill or a
    # power cut may have taken the file.
    write_json(setup.workdir / HISTORY_NAME, progress.history)
    write_metrics(setup.workdir, results)
    if predictions is not None:
        print(metrics.describe(results))
    print(f"The model, its metrics and {report.FILE_NAME} are in {setup.workdir}")
    return results


def _build_final(setup: RunSetup, best: Sequence[np.ndarray], temperature: float = 1.0) -> Network:
    """Builds the network to export: float32, with the weights that were kept."""
    network = setup.build_network("float32", temperature=temperature, is_final=True)
    for variable, value in zip(network.model.variables, best, strict=True):
        variable.assign(value)
    return network


def _export(setup: RunSetup, network: Network, progress: Progress) -> None:
    """Exports the network, with the trunk below it if there is one, and keeps its weights."""
    model, manifest, precision = network.model, setup.manifest, "float32"
    if setup.trunk is not None:
        # A rounding error of the trunk can become a step of the type that features are stored in.
        precision = manifest.dtype
        with setup.devices.scope():
            model = features.whole_model(setup.config, network)
        manifest = features.manifest_of_images(manifest, setup.trunk)
    has_saved_model = export.export_model(
        model, setup.workdir / export.FOLDER_NAME, manifest, precision=precision
    )
    if not has_saved_model:
        setup.devices.say(
            f"note: the export has no {export.SAVED_MODEL_NAME}, which TensorFlow writes"
        )
    checkpoint.save(
        setup.workdir / BEST_NAME,
        {"model": network.model.variables},
        {"epoch": progress.best_epoch},
    )


def _predictions_of(
    setup: RunSetup, network: Network, part: Part, temperature: float | None
) -> Predictions:
    """Returns what the exported network, with its temperature if it has one, says of a part."""
    probabilities, truths = _predict(setup, network, part)
    return Predictions(
        task=setup.task,
        probabilities=probabilities,
        truths=truths,
        examples=read_examples(setup.config.data, part.splits, part.examples),
        part=part,
        uncalibrated=(
            None if temperature is None else setup.task.cool(probabilities, 1 / temperature)
        ),
    )


def _predict(setup: RunSetup, network: Network, part: Part) -> tuple[np.ndarray, np.ndarray]:
    steps = make_steps(network, None, setup.devices, objective=setup.objective, jit_compile=False)
    probabilities, truths = setup.predict(steps, part)
    if not np.isfinite(probabilities).all():
        raise callbacks.TrainingError(
            f"the network answers with probabilities that are not numbers on {part.name}: its "
            "weights went out of range in the last steps. Train again, in another --workdir, "
            "with a lower --learning_rate, more --warmup_steps, or --precision float32"
        )
    return probabilities, truths
