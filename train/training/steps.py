"""The training step, once for each backend, with one interface.

Keras' `fit` is not used, for four reasons. It fetches its batches inside the graph, so the time
that a step waits for input cannot be measured. It reports a running mean, which does not show at
which step a NaN came. It runs over the end of an epoch if `steps_per_execution` does not divide it.
And it takes a batch before it starts, so a run could not go on at the exact example.

Both classes do the same arithmetic. The loss of a step is the sum of weight × loss over the global
batch. The task has the losses. The weights of a step's examples add up to 1, so the gradients of
replicas are summed, never averaged, and any division of the examples among replicas gives the same
result. Images are augmented here, before the network, so that the exported network has no layer
that is for training only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from train.data import augmentation, feed
from train.devices import Devices
from train.errors import ConfigError
from train.kinds.classes import CLASSES
from train.kinds.task import Task
from train.networks.models import Network
from train.networks.optimizers import make_optimizer
from train.run_setup import Run

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResults:
    """The results of some steps, one row a step, summed over all replicas.

    Attributes:
        totals: float32 [num_steps, 3]: cross-entropy in nats, summed over the examples; examples
            whose likeliest class is theirs (of several labels, the share that is right counts);
            examples.
        wait_seconds: time spent waiting for input, in all steps together; NaN where no clock
            can be read (`deterministic` on TensorFlow).
    """

    totals: np.ndarray
    wait_seconds: float

    @property
    def loss_sums(self) -> np.ndarray:
        return self.totals[:, 0]

    @property
    def num_examples(self) -> np.ndarray:
        return self.totals[:, 2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What a training step does with its images and labels before it asks for the loss.

    Attributes:
        class_weights: factors in the loss, see `Task.class_weights`.
        task: what the labels are, and the losses.
        label_smoothing: see `Task.losses`.
        augment_strength: see `augmentation.augment`; None for images as they are.
        mixup: whether to train on mixtures, see `augmentation.mix`.
        grey_factor: what the stored values are multiplied by, see `Run.grey_factor`.
        is_padded: see `augmentation.augment`.
    """

    class_weights: tuple
    task: Task = CLASSES
    label_smoothing: float = 0.0
    augment_strength: float | None = None
    mixup: bool = False
    grey_factor: float = 1.0
    is_padded: bool = False

    @classmethod
    def of_run(cls, run: Run) -> Objective:
        """Returns what the configuration of a run asks for."""
        loss, changes, learnt = run.config.loss, run.config.augmentation, run.parts.train
        power = loss.class_weight_power if loss.class_weights == "balanced" else 0.0
        return cls(
            class_weights=run.task.class_weights(learnt.label_counts, learnt.num_examples, power),
            task=run.task,
            label_smoothing=loss.label_smoothing,
            augment_strength=changes.augment_strength if changes.augment else None,
            mixup=changes.mixup > 0,
            grey_factor=run.grey_factor,
            is_padded=run.data.manifest.is_padded,
        )

    def prepare(self, images, labels, draws):
        """Returns augmented, mixed images (float32, 0..255) and mixed labels of a replica.

        Args:
            images: [batch, height, width, channels], as stored.
            labels: float32 [batch, num_classes], of 0 and 1.
            draws: float32 [batch, augmentation.NUM_DRAWS].
        """
        images = keras.ops.cast(images, "float32")
        if self.grey_factor != 1:
            images = images * self.grey_factor
        if self.augment_strength is not None:
            images = augmentation.augment(
                images, draws, self.augment_strength, is_padded=self.is_padded
            )
        if self.mixup:
            images, labels = augmentation.mix(images, labels, draws[:, -1])
        return images, labels

    def loss_and_totals(self, labels, logits, weights):
        """Returns a replica's share of the loss, and [loss sum, correct, examples] of each batch.

        The loss sum that is reported knows neither class weights nor smoothing, so that it can be
        compared with that of a validation split.

        Args:
            labels: float32 [batch, num_classes], those of `prepare`.
            logits: [batch, num_classes], any float type.
            weights: float32 [batch]; zero for an example that only fills up the batch.
        """
        ops = keras.ops
        losses, reported, shares_right = self.task.losses(
            labels, ops.cast(logits, "float32"), self.class_weights, self.label_smoothing
        )
        is_real = ops.cast(weights > 0, "float32")
        # A product with zero would turn the infinity of a filling copy into NaN.
        real_loss = ops.where(weights > 0, reported, 0.0)
        of_examples = real_loss, shares_right * is_real, is_real
        totals = ops.stack([ops.sum(values) for values in of_examples])
        return ops.sum(losses * weights), totals


def training_steps(run: Run, network: Network, *, learning_rate: float, num_steps: int) -> Steps:
    """Returns steps of the backend in use, with a fresh optimizer of the layers that train now.

    Args:
        run: resolved.
        network: built in the devices' scope.
        learning_rate: peak of the schedule.
        num_steps: see `make_optimizer`.
    """
    options, devices = run.config.devices, run.devices
    with devices.scope():
        optimizer = make_optimizer(
            run.config.optimizer,
            precision=options.precision,
            learning_rate=learning_rate,
            num_steps=num_steps,
        )
        optimizer.build(network.logits.trainable_variables)
    objective, jit_compile = Objective.of_run(run), bool(options.jit_compile)
    return _kind(devices)(network, devices, optimizer, objective, jit_compile)


def prediction_steps(network: Network, devices: Devices) -> Steps:
    """Returns steps that predict, but cannot train."""
    return _kind(devices)(network, devices)


def _kind(devices: Devices) -> type[Steps]:
    return JaxSteps if devices.backend == "jax" else TensorFlowSteps


def predict(task: Task, steps: Steps, batches: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns (probabilities float32 [num_examples, num_labels], truths) of evaluation batches."""
    answers = list(steps.predict(steps.iterate(batches)))
    labels = np.concatenate([labels for _, labels in answers])
    return np.concatenate([rows for rows, _ in answers]), task.truths(labels)


def _require_no_exchange(network: Network, devices: Devices) -> None:
    """Refuses to compile a network whose replicas exchange statistics in the middle of a step."""
    exchanges = any(getattr(layer, "synchronized", False) for layer in network.logits.layers)
    if exchanges and devices.num_replicas > 1:
        raise ConfigError(
            "--jit_compile: the replicas of this network exchange statistics within a step, which "
            "XLA cannot compile; leave it out, or train on one device"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _RepeatedBatch:
    """Looks like an iterator to the training graph."""

    batch: Any

    def get_next(self) -> Any:
        return self.batch


class TensorFlowSteps:
    """Training and prediction under a `tf.distribute` strategy.

    Attributes:
        devices: the replicas.
        optimizer: of the layers that train; None if the steps only predict.
        num_traces: how often the training graph was built; more than once wastes time and memory.
    """

    def __init__(
        self,
        network: Network,
        devices: Devices,
        optimizer: keras.optimizers.Optimizer | None = None,
        objective: Objective | None = None,
        jit_compile: bool = False,
    ) -> None:
        import tensorflow as tf

        self._tf = tf
        self.devices = devices
        self.optimizer = optimizer
        self._network = network
        self._objective = objective
        self.num_traces = 0
        self._variables = network.logits.trainable_variables
        # Gradients alone are compiled: the exchange between replicas cannot be. Without XLA they
        # are part of the step's graph, because replicas exchange statistics inside of them.
        self._gradients = self._compute_gradients
        if jit_compile:
            _require_no_exchange(network, devices)
            self._gradients = tf.function(
                self._compute_gradients, autograph=False, jit_compile=True
            )
        # Without AutoGraph, which writes Python files into the folder for temporary files.
        self._predict_function = tf.function(self._compute_predictions, autograph=False)
        self._train_function = tf.function(self._train, autograph=False)

    def iterate(self, dataset: tf.data.Dataset | feed.DeviceBatches) -> Any:
        """Returns an iterator that brings a dataset of replica batches to the devices."""
        if isinstance(dataset, feed.DeviceBatches):
            return dataset.iterate()
        distribute = self.devices.strategy.distribute_datasets_from_function
        return iter(distribute(lambda context: dataset))

    def repeat_first(self, dataset: tf.data.Dataset) -> Any:
        """Returns an endless iterator of one batch that stays on the devices, to measure by."""
        return _RepeatedBatch(self.iterate(dataset).get_next())

    def train(self, batches: Any, num_steps: int) -> StepResults:
        """Runs training steps without returning to Python between them."""
        tf = self._tf
        # A tensor, because each value of a Python number would build another graph.
        totals, wait_seconds = self._train_function(batches, tf.constant(num_steps))
        return StepResults(totals=totals.numpy(), wait_seconds=float(wait_seconds))

    def predict(self, batches: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (probabilities, labels) [examples, num_classes] of each batch, no copies."""
        local = self.devices.strategy.experimental_local_results
        for images, labels, weights in batches:
            probabilities = local(self._predict_function(images))
            for part in zip(probabilities, local(labels), local(weights), strict=True):
                rows, row_labels, row_weights = (tensor.numpy() for tensor in part)
                yield rows[row_weights > 0], row_labels[row_weights > 0]

    def sync(self) -> None:
        """Makes the variables of the model and the optimizer current: here they always are."""

    def _train(self, batches: Any, num_steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # Runs while the graph is built, and only then.
        self.num_traces += 1
        tf = self._tf
        strategy = self.devices.strategy

        def train_one(
            step: tf.Tensor, results: tf.TensorArray, wait_seconds: tf.Tensor
        ) -> tuple[tf.Tensor, tf.TensorArray, tf.Tensor]:
            asked_at = self._now()
            with tf.control_dependencies([asked_at]):
                batch = batches.get_next()
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                wait_seconds += self._now() - asked_at
            totals = strategy.run(self._replica_step, args=batch)
            totals = strategy.reduce(tf.distribute.ReduceOp.SUM, totals, axis=None)
            return step + 1, results.write(step, totals), wait_seconds

        initial = (
            tf.constant(0),
            tf.TensorArray(tf.float32, num_steps),
            tf.constant(0.0, tf.float64),
        )
        _, results, wait_seconds = tf.while_loop(
            lambda step, *_: step < num_steps, train_one, initial
        )
        return results.stack(), wait_seconds

    def _now(self) -> tf.Tensor:
        # TensorFlow refuses to read a clock when only deterministic operations are allowed.
        if self.devices.deterministic:
            return self._tf.constant(math.nan, self._tf.float64)
        return self._tf.timestamp()

    def _replica_step(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, draws: tf.Tensor
    ) -> tf.Tensor:
        # Not compiled with XLA, which has no op for the warp.
        images, labels = self._objective.prepare(images, labels, draws)
        gradients, totals = self._gradients(images, labels, weights)
        # Keras sums the gradients of the replicas in here.
        self.optimizer.apply(gradients, self._variables)
        return totals

    def _compute_gradients(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        with self._tf.GradientTape() as tape:
            logits = self._network.logits(images, training=True)
            loss, totals = self._objective.loss_and_totals(labels, logits, weights)
            loss = self.optimizer.scale_loss(loss)
        return tape.gradient(loss, [variable.value for variable in self._variables]), totals

    def _compute_predictions(self, images: tf.Tensor) -> tf.Tensor:
        return self.devices.strategy.run(
            lambda replica_images: self._network.model(replica_images, training=False),
            args=(images,),
        )


class JaxSteps:
    """Training and prediction as pure functions, batches split over the devices of a mesh.

    Attributes: see `TensorFlowSteps`.
    """

    def __init__(
        self,
        network: Network,
        devices: Devices,
        optimizer: keras.optimizers.Optimizer | None = None,
        objective: Objective | None = None,
        jit_compile: bool = False,
    ) -> None:
        import jax

        self._jax = jax
        self.devices = devices
        self.optimizer = optimizer
        self._network = network
        self._objective = objective
        self.num_traces = 0
        self._copy = jax.jit(
            lambda state: jax.tree.map(jax.numpy.copy, state), out_shardings=devices.copied
        )
        # On every device, so that each worker has all results.
        self._train_function = jax.jit(self._train, donate_argnums=0, out_shardings=devices.copied)
        self._predict_function = jax.jit(self._compute_predictions, out_shardings=devices.copied)
        self._state: tuple[list[Any], list[Any], list[Any]] | None = None

    def iterate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Returns the batches: `feed` has brought them to the devices."""
        return iter(batches)

    def repeat_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Returns an endless iterator of one batch that stays on the devices, to measure by."""
        return itertools.repeat(next(batches))

    def train(self, batches: Iterator[Any], num_steps: int) -> StepResults:
        """Runs training steps; the devices work on one while the host prepares the next."""
        if self._state is None:
            self._state = self._read_state()
        wait_seconds = 0.0
        totals: list[Any] = []
        for _ in range(num_steps):
            asked_at = time.perf_counter()
            batch = next(batches)
            # While the devices work on the last step, they do not wait for input.
            if not totals or totals[-1].is_ready():
                wait_seconds += time.perf_counter() - asked_at
            self._state, step_totals = self._train_function(self._state, *batch)
            totals.append(step_totals)
        return StepResults(totals=np.stack(self._jax.device_get(totals)), wait_seconds=wait_seconds)

    def predict(self, batches: Iterator[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (probabilities, labels) [examples, num_classes] of each batch, no copies.

        The weights are those of the variables: `sync` first, if there were steps since.
        """
        model = self._network.model
        weights = [variable.value for variable in model.trainable_variables]
        other = [variable.value for variable in model.non_trainable_variables]
        for images, labels, row_weights in batches:
            probabilities = np.asarray(self._predict_function(weights, other, images))
            is_real = np.asarray(row_weights) > 0
            yield probabilities[is_real], np.asarray(labels)[is_real]

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
        model = self._network.logits
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            self.optimizer.variables,
        )

    def _read_state(self) -> tuple[list[Any], list[Any], list[Any]]:
        # Copies, because a step donates its input. They are placed as a step's results are,
        # because another placement means another trace.
        return self._copy(
            tuple([variable.value for variable in group] for group in self._state_variables())
        )

    def _train(
        self, state: Any, images: Any, labels: Any, weights: Any, draws: Any
    ) -> tuple[Any, Any]:
        # Runs while the function is traced, and only then.
        self.num_traces += 1
        trainable, other, optimizer_state = state
        images, labels = self._objective.prepare(images, labels, draws)

        def compute_loss(trainable, other):
            logits, other = self._network.logits.stateless_call(
                trainable, other, images, training=True
            )
            loss, totals = self._objective.loss_and_totals(labels, logits, weights)
            mapping = list(zip(self.optimizer.variables, optimizer_state, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                loss = self.optimizer.scale_loss(loss)
            return loss, (totals, other)

        gradients, (totals, other) = self._jax.grad(compute_loss, has_aux=True)(trainable, other)
        trainable, optimizer_state = self.optimizer.stateless_apply(
            optimizer_state, gradients, trainable
        )
        return (trainable, other, optimizer_state), totals

    def _compute_predictions(self, trainable: Any, other: Any, images: Any) -> Any:
        probabilities, _ = self._network.model.stateless_call(
            trainable, other, images, training=False
        )
        return probabilities


#: The training steps of either backend.
Steps = TensorFlowSteps | JaxSteps
