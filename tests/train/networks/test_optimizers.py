import contextlib

import keras
import numpy as np
import pytest

from train.networks.optimizers import WarmupSchedule, averaged_weights, make_optimizer
from train.networks.options import OptimizerOptions


@pytest.mark.parametrize(
    ("peak", "warmup_steps", "decay_steps", "expected"),
    [
        (0.4, 4, None, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]),
        (1.0, 0, 4, [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]),
        (1.0, 2, 4, [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_the_rate_rises_to_its_peak_and_stays_or_falls_along_a_cosine(
    peak, warmup_steps, decay_steps, expected
):
    schedule = WarmupSchedule(peak, warmup_steps, decay_steps)
    rates = [keras.ops.convert_to_numpy(schedule(step)) for step in range(len(expected))]
    assert rates == pytest.approx(expected, abs=1e-6)


def updated(variables, pretrained=(), head_steps=0, **fields):
    """Returns an optimizer after one step whose gradients are zero."""
    fields = {"ema_decay": 0.0, "learning_rate": 0.1, "schedule": "constant", **fields}
    options = OptimizerOptions(**{"warmup_steps": 0, **fields})
    optimizer = make_optimizer(options, num_steps=10, pretrained=pretrained, head_steps=head_steps)
    optimizer.build(variables)
    optimizer.apply([np.zeros(variable.shape, np.float32) for variable in variables])
    return optimizer


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_weight_decay_shrinks_kernels_and_leaves_biases_and_scales_alone(optimizer):
    names = ("kernel", "bias", "beta", "gamma")
    variables = [keras.Variable([2.0], name=name) for name in names]
    found = updated(variables, optimizer=optimizer, weight_decay=0.5)
    assert isinstance(found, keras.optimizers.SGD) == (optimizer == "sgd")
    # Less the share 0.5, times the learning rate 0.1.
    assert [float(variable.numpy()[0]) for variable in variables] == pytest.approx([1.9, 2, 2, 2])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_pretrained_layers_learn_and_decay_by_their_own_rate_after_the_steps_of_the_head(optimizer):
    variables = []
    for part in ("head", "backbone"):
        with keras.name_scope(part):
            variables.append(keras.Variable([2.0], name="kernel"))
    trained = updated(
        variables, optimizer=optimizer, weight_decay=0.5, fine_tune_learning_rate=0.01,
        pretrained=["backbone/kernel"], head_steps=1,
    )  # fmt: skip
    head, rest = (float(variable.numpy()[0]) for variable in variables)
    assert (head, rest) == pytest.approx((1.9, 2.0))
    trained.apply([np.ones(1, np.float32)] * 2)
    # Both shrink by half of their rate; the gradient moves both by the same number of rates.
    first, second = (
        (before * (1 - 0.5 * rate) - float(variable.numpy()[0])) / rate
        for before, rate, variable in zip((head, rest), (0.1, 0.01), variables, strict=True)
    )
    assert first == pytest.approx(second, rel=1e-3)
    assert first > 0.5


def test_the_moving_average_stands_in_for_the_weights_inside_a_block_even_one_that_fails():
    variable = keras.Variable([0.0], name="kernel")
    optimizer = updated([variable], optimizer="sgd", weight_decay=0.0, ema_decay=0.75)
    for value in (1.0, 2.0):
        variable.assign([value])
        optimizer.apply([np.zeros(1, np.float32)])
    average = 0.75 * (0.75 * 0 + 0.25 * 1) + 0.25 * 2
    with contextlib.suppress(InterruptedError), averaged_weights(optimizer, [variable]):
        assert float(variable.numpy()[0]) == pytest.approx(average)
        raise InterruptedError
    assert float(variable.numpy()[0]) == 2.0
    # Without an average, the weights are what they are.
    with averaged_weights(updated([variable], weight_decay=0.0), [variable]):
        assert float(variable.numpy()[0]) == 2.0
