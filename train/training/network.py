"""The network of a run, built on its devices."""

from __future__ import annotations

import dataclasses

import keras

from train.networks.models import Network, build_network
from train.training.run_setup import Run


def network_of(
    run: Run,
    precision: str,
    *,
    weights: str | None = "none",
    temperature: float = 1.0,
    is_final: bool = False,
) -> Network:
    """Builds the network of a run on its devices.

    Args:
        run: to train, or trained.
        precision: arithmetic of the layers, such as `float32` or `bfloat16`.
        weights: see `NetworkOptions`; "none" where a checkpoint overrides them all.
        temperature: see `build_network`.
        is_final: whether it is the one to export.

    Raises:
        ConfigError: if the images do not suit the network or the weights cannot be loaded.
    """
    keras.config.set_dtype_policy(precision if precision == "float32" else f"mixed_{precision}")
    manifest = run.data.manifest
    with run.devices.scope():
        return build_network(
            dataclasses.replace(run.config.network, weights=weights),
            image_shape=manifest.image_shape,
            num_classes=manifest.num_classes,
            seed=run.config.input.seed,
            task=run.task,
            image_dtype=manifest.dtype,
            grey_factor=run.grey_factor,
            statistics=run.statistics,
            is_padded=manifest.is_padded,
            temperature=temperature,
            # Not in what is exported: other backends refuse to load it.
            synchronized=run.devices.must_synchronize and not is_final,
        )
