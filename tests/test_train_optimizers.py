import keras
import pytest

from train.config import TrainConfig
from train.optimizers import WarmupSchedule, make_optimizer


def rates(schedule, num_steps):
    return [float(keras.ops.convert_to_numpy(schedule(step))) for step in range(num_steps)]


def test_the_rate_rises_linearly_and_then_stays():
    assert rates(WarmupSchedule(0.4, 4, None), 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_a_cosine_falls_from_the_peak_to_zero():
    assert rates(WarmupSchedule(1.0, 0, 4), 6) == pytest.approx(
        [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0], abs=1e-6
    )


def test_warm_up_and_cosine_meet_at_the_peak():
    values = rates(WarmupSchedule(1.0, 2, 4), 7)
    assert values[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert values[-1] == pytest.approx(0.0, abs=1e-6)


def test_a_schedule_survives_its_configuration():
    schedule = WarmupSchedule(0.4, 4, 8)
    assert rates(WarmupSchedule.from_config(schedule.get_config()), 12) == rates(schedule, 12)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"optimizer": "adam"}, keras.optimizers.Adam),
        ({"optimizer": "sgd"}, keras.optimizers.SGD),
        ({"precision": "float16"}, keras.optimizers.LossScaleOptimizer),
    ],
)
def test_the_optimizer_is_the_one_asked_for(fields, kind):
    assert isinstance(make_optimizer(TrainConfig(**fields), learning_rate=0.1, num_steps=10), kind)


def test_a_warm_up_is_no_longer_than_its_phase():
    optimizer = make_optimizer(TrainConfig(warmup_steps=100), learning_rate=1.0, num_steps=2)
    optimizer.build([keras.Variable([1.0])])
    assert float(optimizer.learning_rate) == pytest.approx(0.5)
