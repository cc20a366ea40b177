"""After the training: exports the weights that were kept, and measures what they predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from train.data.examples import read_examples
from train.data.parts import Part
from train.devices import Devices
from train.kinds.task import Answers
from train.networks import features
from train.networks.build import build_network
from train.networks.models import Network
from train.results import metrics, report, run_results, thresholds
from train.results.predictions import Predictions
from train.run_folder import BEST_NAME, HISTORY_NAME, write_json, write_metrics
from train.run_setup import Run
from train.training import checkpoint, export
from train.training.callbacks import TrainingError
from train.training.progress import Progress
from train.training.steps import make_steps, predict


def finish(run: Run, progress: Progress, best: Sequence[np.ndarray]) -> dict[str, Any]:
    """Exports the weights that were kept, evaluates them, and writes the results.

    Both use the exported network, in float32 whatever the training used, so the report is exactly
    what the export and `predict` compute.

    Args:
        run: that was trained.
        progress: of the finished training.
        best: values of the network's variables in the epoch to keep.

    Returns:
        the content of metrics.json, see `metrics.evaluate_predictions`.

    Raises:
        TrainingError: if the network's answers are not numbers.
        ExportError: if an exported form does not give the network's answers.
        MetricsError: if the answers cannot be measured.
    """
    manifest, parts, task, config = run.manifest, run.parts, run.task, run.config
    # Each worker does this for itself. On JAX, what is built from here on lies on its own devices.
    devices = run.devices.alone()
    network = _build_final(run, best)
    val = temperature = predictions = None
    chosen: list[dict[str, Any]] = []
    if parts.val is not None:
        val = _predict(run, network, devices, parts.val)
        # What is reported of a part must not be fitted to it.
        if parts.test is not None and task.gives_probabilities:
            temperature = task.fit_temperature(*val)
            network = _build_final(run, best, temperature)
            answers = Answers(
                probabilities=task.cool(val[0], temperature),
                truths=val[1],
                label_names=manifest.label_names,
            )
            wanted = config.thresholds.sensitivity
            chosen = thresholds.choose_thresholds(task, answers, wanted)
    # Before the evaluation: whatever may fail in it, the model is not lost.
    if run.devices.is_chief:
        _export(run, network, progress)
        thresholds.write_thresholds(run.folder / export.FOLDER_NAME, chosen)
    results: dict[str, Any] = {
        "split": parts.evaluated.name if parts.evaluated else None,
        "best_epoch": progress.best_epoch,
        "steps": progress.step,
    }
    if part := parts.evaluated:
        probabilities, truths = _predict(run, network, devices, part)
        predictions = Predictions(
            task=task,
            probabilities=probabilities,
            truths=truths,
            label_names=manifest.label_names,
            examples=read_examples(config.input.data, part.splits, part.examples),
            part=part,
            uncalibrated=temperature and task.cool(probabilities, 1 / temperature),
        )
    if not run.devices.is_chief:
        return results
    if predictions is not None:
        results |= run_results.measure(predictions, config, chosen)
        if temperature is not None and val is not None:
            facts = {"fitted_on": "val", "num_examples": len(val[1])}
            results["calibration"] = facts | thresholds.describe_calibration(
                task,
                temperature,
                before=predictions.uncalibrated,
                after=predictions.probabilities,
                truths=predictions.truths,
            )

    results |= run_results.describe_data(results, manifest, run.exposure)

    def predict_images(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(network.model(images, training=False))

    run_results.write_results(
        run.folder,
        manifest=manifest,
        config=config,
        results=results,
        predictions=predictions,
        # Pictures of the mistakes need images.
        predict=predict_images if run.trunk is None else None,
        history=progress.history,
        exposure=run.exposure,
    )
    # Again: a run that goes on from its last checkpoint does not repeat the epoch, and a kill or a
    # power cut may have taken the file.
    write_json(run.folder / HISTORY_NAME, progress.history)
    write_metrics(run.folder, results)
    if predictions is not None:
        print(metrics.describe(results))
    print(f"The model, its metrics and {report.FILE_NAME} are in {run.folder}")
    return results


def _build_final(run: Run, best: Sequence[np.ndarray], temperature: float = 1.0) -> Network:
    """Builds the network to export: float32, with the weights that were kept."""
    network = build_network(run, "float32", temperature=temperature, is_final=True)
    for variable, value in zip(network.model.variables, best, strict=True):
        variable.assign(value)
    return network


def _export(run: Run, network: Network, progress: Progress) -> None:
    """Exports the network, with the trunk below it if there is one, and keeps its weights."""
    model, manifest, precision = network.model, run.manifest, "float32"
    if run.trunk is not None:
        # A rounding error of the trunk can become a step of the type that features are stored in.
        precision = manifest.dtype
        with run.devices.scope():
            model = features.whole_model(run, network)
        manifest = features.manifest_of_images(manifest, run.trunk)
    has_saved_model = export.export_model(
        model,
        run.folder / export.FOLDER_NAME,
        manifest,
        precision=precision,
        splits=run.parts.train.splits,
    )
    if not has_saved_model:
        run.devices.say(
            f"note: the export has no {export.SAVED_MODEL_NAME}, which TensorFlow writes"
        )
    checkpoint.save(
        run.folder / BEST_NAME,
        {"model": network.model.variables},
        {"epoch": progress.best_epoch},
    )


def _predict(
    run: Run, network: Network, devices: Devices, part: Part
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probabilities float32 [num_examples, num_labels], truths) of a part."""
    probabilities, truths = predict(run, make_steps(run, network, None, devices), part)
    if not np.isfinite(probabilities).all():
        raise TrainingError(
            f"the network answers with probabilities that are not numbers on {part.name}: its "
            "weights went out of range in the last steps. Train again, in another --workdir, "
            "with a lower --learning_rate, more --warmup_steps, or --precision float32"
        )
    return probabilities, truths
