"""The network of a run: on images, or on features above their trunk."""

from __future__ import annotations

import dataclasses

from train.devices import set_precision
from train.networks import features, models
from train.run_setup import Run


def build_network(
    run: Run,
    precision: str,
    *,
    weights: str | None = "none",
    temperature: float = 1.0,
    is_final: bool = False,
) -> models.Network:
    """Builds the network of a run on its devices.

    Args:
        run: resolved.
        precision: arithmetic of the layers, such as `float32` or `bfloat16`.
        weights: see `NetworkOptions`; "none" where a checkpoint overrides them all. Layers on the
            features of a trunk have those that the trunk's file holds.
        temperature: divisor of the log probabilities, see `kinds.temperature`.
        is_final: whether it is the one to export.

    Raises:
        ConfigError: if the images do not suit the network or the weights cannot be loaded.
    """
    set_precision(precision)
    with run.devices.scope():
        if run.trunk is not None:
            return features.build_network(run, temperature=temperature)
        return models.build_network(
            dataclasses.replace(run.config.network, weights=weights),
            image_shape=run.manifest.image_shape,
            num_classes=run.manifest.num_classes,
            seed=run.config.input.seed,
            task=run.task,
            image_dtype=run.manifest.dtype,
            grey_factor=run.grey_factor,
            statistics=run.statistics,
            is_padded=run.manifest.is_padded,
            temperature=temperature,
            # Not in what is exported: other backends refuse to load it.
            synchronized=run.devices.must_synchronize and not is_final,
        )
