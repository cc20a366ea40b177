"""The heads of many runs as one network, with the runs as the first axis of all arrays."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np

from train.networks.models import Network


class _StackedDense(keras.layers.Layer):
    """Dense layers side by side: [runs, batch, channels] → [runs, batch, units].

    Args:
        layers: the layer of each run, whose weights it starts with.
    """

    def __init__(self, layers: Sequence[keras.layers.Dense]) -> None:
        super().__init__(name=layers[0].name)
        self.activation = layers[0].activation
        self.kernel = self._stack([layer.kernel for layer in layers], "kernel")
        # Three axes as well, because the optimizer has a rate for each run.
        self.bias = self._stack([layer.bias[np.newaxis] for layer in layers], "bias")

    def _stack(self, values: Sequence[object], name: str) -> keras.Variable:
        stacked = np.stack([keras.ops.convert_to_numpy(value) for value in values])
        variable = self.add_weight(stacked.shape, name=name)
        variable.assign(stacked)
        return variable

    def call(self, inputs):
        return self.activation(keras.ops.matmul(inputs, self.kernel) + self.bias)


def stack_networks(networks: Sequence[Network], batch_size: int) -> Network:
    """Returns networks whose head alone learns as one network that computes them side by side.

    Args:
        networks: results of `features.build_network`, one a run; they give the weights. Runs of
            the same seed share one object and are adjacent; each seed has the same number of runs.
        batch_size: of each run.

    Returns:
        a network to train with: float32 features [runs, batch_size, height, width, channels] →
        logits [runs, batch_size, num_classes]. In each run, its dropout drops what the run's own
        dropout would.
    """
    grid = len(networks), batch_size
    shape = networks[0].logits.input_shape[1:]
    images = keras.Input(batch_shape=(*grid, *shape), name="features")
    # Below the head are layers without weights, the same for all runs.
    _, rest, *_ = networks[0].logits.layers
    flat = rest(keras.ops.reshape(images, (-1, *shape)))
    values = keras.ops.reshape(flat, (*grid, flat.shape[-1]))
    heads = [network.logits.layers[2:] for network in networks]
    for layers in zip(*heads, strict=True):
        if isinstance(layers[0], keras.layers.Dropout):
            values = _drop(values, list(dict.fromkeys(layers)))
        else:
            values = _StackedDense(layers)(values)
    logits = keras.Model(images, values, name="heads")
    return Network(logits=logits, model=logits, backbone=None)


def _drop(values, layers: Sequence[keras.layers.Dropout]):
    """Applies the dropout of each seed; what it drops depends on the seed and the step alone."""
    dropped = [
        keras.layers.Dropout(layer.rate, noise_shape=(1, None, None), seed=layer.seed)(part)
        for layer, part in zip(layers, keras.ops.split(values, len(layers)), strict=True)
    ]
    return keras.ops.concatenate(dropped, axis=0)
