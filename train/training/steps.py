"""The training step, once for each backend, with one interface.

Keras' `fit` is not used: it cannot measure how long a step waits for input, reports a running mean
that hides the step of a NaN, and cannot start at the exact example.

The loss of a step is the sum of weight × loss over the global batch. The weights of a step's
examples add up to 1, so the gradients of replicas are summed, never averaged, and any division of
the examples among replicas gives the same result.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from tfrecord_io.stores.ahead import map_ahead
from train.data import augmentation
from train.data.options import AugmentOptions
from train.kinds.task import Task
from train.machine import console
from train.machine.devices import Devices
from train.networks.models import Network

if TYPE_CHECKING:
    import tensorflow as tf


class StepResults(NamedTuple):
    """The results of a step, and the seconds that it waited for input.

    The totals are float32 [3], summed over the examples of all replicas: cross-entropy in nats,
    examples whose likeliest class is theirs (of several labels, the share that is right), examples.
    """

    totals: np.ndarray
    wait_seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What a step makes of a batch, and what it minimizes.

    `class_weights` are those in the loss, `label_smoothing` is the share of each label that is
    spread evenly over all classes, and `is_padded` whether pictures are padded with black.
    """

    task: Task
    class_weights: tuple[float, ...]
    label_smoothing: float
    augmentation: AugmentOptions
    is_padded: bool

    def prepare(self, images, labels, draws):
        """Returns augmented, mixed images (float32, 0..255) and mixed labels of a replica.

        The images are as stored, the labels float32 [batch, num_classes], of 0 and 1, and the draws
        float32 [batch, augmentation.NUM_DRAWS].
        """
        changes = self.augmentation

        def change(images, draws):
            if changes.augment:
                strength = changes.augment_strength
                images = augmentation.augment(images, draws, strength, is_padded=self.is_padded)
            return keras.ops.cast(images, "float32")

        changed = change(images, draws)
        if changes.mixup:
            # To compute a partner's pixels a second time is faster than to write and read them.
            others = change(augmentation.partners(images), augmentation.partners(draws))
            kept = draws[:, -1]
            changed = augmentation.mix(changed, others, kept)
            labels = augmentation.mix(labels, augmentation.partners(labels), kept)
        return changed, labels

    def loss_and_totals(self, labels, logits, weights):
        """Returns a replica's share of the loss, and its row of `StepResults.totals`.

        The reported loss knows neither class weights nor smoothing, so that it can be compared with
        that of a validation split. The labels are those of `prepare`, logits [batch, num_classes]
        of any float type; the weights, float32 [batch], are zero of what only fills up the batch.
        """
        ops = keras.ops
        losses, reported, shares_right = self.task.losses(
            labels, ops.cast(logits, "float32"), self.class_weights, self.label_smoothing
        )
        is_real = ops.cast(weights > 0, "float32")
        # A product with zero would turn the infinity of a filling copy into NaN.
        real_loss = ops.where(weights > 0, reported, 0.0)
        values = (real_loss, shares_right * is_real, is_real)
        totals = ops.stack([ops.sum(value) for value in values])
        return ops.sum(losses * weights), totals


@dataclasses.dataclass(kw_only=True, eq=False)
class Steps:
    """Training and prediction on the devices of a run; each backend has its own.

    Images are augmented before the network, so the exported one has no layer for training only.

    Attributes:
        optimizer: of the layers that train; None if the steps only predict.
        num_traces: how often the training graph was built; more than once wastes time and memory.
    """

    network: Network
    devices: Devices
    objective: Objective
    optimizer: Any = None
    num_traces: int = dataclasses.field(default=0, init=False)

    def iterate(self, batches: Any) -> Iterator[Any]:
        """Returns an iterator that brings the batches of `feed` to the devices."""
        raise NotImplementedError

    def train(self, batches: Iterator[Any]) -> StepResults:
        """Runs a training step on the next batch of `iterate`."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the variables of the model and the optimizer current, after steps."""

    def predict(self, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns (probabilities float32 [num_examples, num_labels], truths) of batches of `feed`.

        The weights are those of the variables: `sync` first, if there were steps since.
        """
        probabilities, labels = [], []
        for *answers, weights in self._predict(self.iterate(batches)):
            rows, row_labels = (np.asarray(values)[np.asarray(weights) > 0] for values in answers)
            probabilities.append(rows)
            labels.append(row_labels)
        return np.concatenate(probabilities), np.concatenate(labels) > 0

    def _predict(self, batches: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yields (probabilities, labels, weights) of a replica batch; weight 0 means a copy."""
        raise NotImplementedError


@dataclasses.dataclass(kw_only=True, eq=False)
class TensorFlowSteps(Steps):
    """Steps under a `tf.distribute` strategy."""

    def __post_init__(self) -> None:
        import tensorflow as tf

        from tfrecord_io.reading.reader import errors_as_raised

        self._errors_as_raised = errors_as_raised
        self._tf = tf
        # Without AutoGraph, which writes Python files into the folder for temporary files.
        function = functools.partial(tf.function, autograph=False)
        run = self.devices.strategy.run
        answer = functools.partial(self.network.model, training=False)
        self._predict_function = function(lambda images: run(answer, args=(images,)))
        self._train_function = function(self._train)
        # XLA makes a single loop of the augmentation; op by op it takes ten times as long.
        self._prepare = function(self.objective.prepare, jit_compile=True)
        # Of the rest, gradients alone are compiled, on one GPU: the exchange between replicas
        # cannot be, and on a CPU that takes longer than it saves in a short run.
        self._gradients = self._compute_gradients
        if self.devices.on_gpu and self.devices.num_replicas == 1:
            self._gradients = function(self._gradients, jit_compile=True)

    def iterate(self, batches: tf.data.Dataset) -> Iterator[Any]:
        distribute = self.devices.strategy.distribute_datasets_from_function
        # With --deterministic, TensorFlow reports its own rewriting of the input as an error.
        with console.hide_native_noise():
            return iter(distribute(lambda context: batches))

    def train(self, batches: Iterator[Any]) -> StepResults:
        asked_at = time.perf_counter()
        with self._errors_as_raised():
            batch = next(batches)
            waited = time.perf_counter() - asked_at
            totals = self._train_function(batch)
        return StepResults(totals.numpy(), waited)

    def _predict(self, batches: Any) -> Iterator[tuple[Any, Any, Any]]:
        local = self.devices.strategy.experimental_local_results
        with self._errors_as_raised():
            for images, *others in batches:
                probabilities = self._predict_function(images)
                yield from zip(*map(local, (probabilities, *others)), strict=True)

    def _train(self, batch: Any) -> tf.Tensor:
        # Runs while the graph is built, and only then.
        self.num_traces += 1
        strategy = self.devices.strategy
        totals = strategy.run(self._replica_step, args=batch)
        return strategy.reduce(self._tf.distribute.ReduceOp.SUM, totals, axis=None)

    def _replica_step(self, images, labels, weights, draws):
        images, labels = self._prepare(images, labels, draws)
        gradients, totals = self._gradients(images, labels, weights)
        # Keras sums the gradients of the replicas in here.
        self.optimizer.apply(gradients, self.network.logits.trainable_variables)
        return totals

    def _compute_gradients(self, images, labels, weights):
        with self._tf.GradientTape() as tape:
            logits = self.network.logits(images, training=True)
            loss, totals = self.objective.loss_and_totals(labels, logits, weights)
        variables = self.network.logits.trainable_variables
        return tape.gradient(loss, [variable.value for variable in variables]), totals


@dataclasses.dataclass(kw_only=True, eq=False)
class JaxSteps(Steps):
    """Steps as pure functions, batches split over the devices of a mesh; XLA compiles them all."""

    def __post_init__(self) -> None:
        import jax

        self._jax, copied = jax, self.devices.sharding()
        copy = functools.partial(jax.tree.map, jax.numpy.copy)
        self._copy = jax.jit(copy, out_shardings=copied)
        self._train_function = jax.jit(self._train, donate_argnums=0, out_shardings=copied)
        answer = functools.partial(self.network.model.stateless_call, training=False)
        self._predict_function = jax.jit(lambda *given: answer(*given)[0], out_shardings=copied)
        self._state: tuple[list[Any], list[Any], list[Any]] | None = None

    def iterate(self, batches: Any) -> Iterator[Any]:
        # Each device gets its part. Two batches wait there while the devices work on another.
        put = functools.partial(self._jax.device_put, device=self.devices.sharding("batch"))
        return map_ahead(put, batches, 2, num_threads=1)

    def train(self, batches: Iterator[Any]) -> StepResults:
        if self._state is None:
            # Copies, because a step donates its input. They are placed as a step's results are,
            # because another placement means another trace.
            groups = self._state_variables()
            self._state = self._copy(
                tuple([variable.value for variable in group] for group in groups)
            )
        asked_at = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked_at
        self._state, totals = self._train_function(self._state, *batch)
        return StepResults(self._jax.device_get(totals), waited)

    def _predict(self, batches: Iterator[Any]) -> Iterator[tuple[Any, Any, Any]]:
        model = self.network.model
        groups = model.trainable_variables, model.non_trainable_variables
        weights = [[variable.value for variable in group] for group in groups]
        for images, *others in batches:
            yield self._predict_function(*weights, images), *others

    def sync(self) -> None:
        """Writes the state of the steps into the variables of the model and the optimizer."""
        if self._state is None:
            return
        for variables, values in zip(self._state_variables(), self._state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        # The variables now hold these arrays, which the next step would donate.
        self._state = None

    def _state_variables(self) -> tuple[list[Any], list[Any], list[Any]]:
        model = self.network.logits
        return model.trainable_variables, model.non_trainable_variables, self.optimizer.variables

    def _train(self, state, images, labels, weights, draws):
        # Runs while the function is traced, and only then.
        self.num_traces += 1
        trainable, other, optimizer_state = state
        images, labels = self.objective.prepare(images, labels, draws)

        def compute_loss(trainable, other):
            logits, other = self.network.logits.stateless_call(
                trainable, other, images, training=True
            )
            loss, totals = self.objective.loss_and_totals(labels, logits, weights)
            return loss, (totals, other)

        gradients, (totals, other) = self._jax.grad(compute_loss, has_aux=True)(trainable, other)
        trainable, optimizer_state = self.optimizer.stateless_apply(
            optimizer_state, gradients, trainable
        )
        return (trainable, other, optimizer_state), totals
