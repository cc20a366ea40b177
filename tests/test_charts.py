import itertools

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from dataset_factory import bare_manifest
from hypothesis import given

from pipelines.report import card
from tfrecord_io.manifest import Shard, Split
from tfrecord_io.pages import page


def a_manifest(label_counts, label_names=None):
    """Returns the manifest of splits that are nothing but their counts."""
    splits = {
        f"split{n}": Split(
            label_counts=tuple(counts),
            shards=(Shard(name="all", num_examples=sum(counts), num_bytes=0, sha256=""),),
        )
        for n, counts in enumerate(label_counts)
    }
    names = label_names or [f"class {n}" for n in range(len(label_counts[0]))]
    return bare_manifest(image_shape=(4, 4, 1), label_names=names, splits=splits)


def test_a_class_of_half_the_size_has_half_the_bar():
    chart, small, empty = card.classes_of_splits(a_manifest([[1200, 600, 0], [1, 1, 2], [0, 0, 0]]))
    assert chart.title == "split0: 1,800 images"
    assert [bar.length for bar in chart.bars] == [1, 0.5, 0]
    assert [bar.value for bar in chart.bars] == ["1,200 (67 %)", "600 (33 %)", "0 (0 %)"]
    assert [bar.series for bar in chart.bars] == [0, 1, 2]
    assert small.description.endswith("class 0 1 (25 %), class 1 1 (25 %), class 2 2 (50 %)")
    assert [bar.length for bar in empty.bars] == [0, 0, 0]


def test_patients_are_counted_by_how_many_images_they_have():
    patients = ["a"] + ["b"] * 2 + ["c"] * 2 + ["d"] * 7 + ["e"] * 120 + [None] * 50
    (chart,) = card.images_of_patients(pa.table({"patient": patients}))
    shown = {bar.name: (bar.value, bar.length) for bar in chart.bars}
    assert list(shown) == ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
    assert shown["2"] == ("2", 1)
    assert {name for name, (value, _) in shown.items() if value == "1"} == {"1", "5–9", "100+"}
    assert "2 with 2, 1 with 5–9, 1 with 100+" in chart.description
    # The chart ends with the patient of most images.
    (short,) = card.images_of_patients(pa.table({"patient": ["a", "b", "b"]}))
    assert [bar.name for bar in short.bars] == ["1", "2"]


def test_side_facts_stand_beside_guessing_the_strongest_first():
    by_signal = {"original size": 0.2, "white border": 0.4}
    (chart,) = card.side_facts_of_classes({"chance": 0.25, "accuracy": 0.5, "by_signal": by_signal})
    assert [bar.name for bar in chart.bars] == ["all together", "white border", "original size"]
    assert [bar.length for bar in chart.bars] == pytest.approx([1, 0.8, 0.4])
    assert [bar.value for bar in chart.bars] == ["50 %", "40 %", "20 %"]
    assert chart.mark == ("guessing 25 %", 0.5)


def test_what_is_not_known_or_too_much_is_not_drawn():
    assert card.classes_of_splits(a_manifest([[1] * 1000])) == []
    assert card.images_of_patients(pa.table({"patient": pa.nulls(2, pa.string())})) == []
    assert card.side_facts_of_classes(None) == []


LABELLED = st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 255, width=32))


@given(values=st.lists(LABELLED, min_size=1, max_size=200))
def test_a_histogram_shows_every_image_of_a_class_once(values):
    labels, brightness = zip(*values, strict=True)
    table = pa.table({"label": labels, "brightness": np.array(brightness)})
    names = tuple(sorted(set(labels)))
    (chart,) = card.brightness(a_manifest([[1] * len(names)], names), table)
    assert [name for name, _ in chart.series] == list(names)
    areas = [
        sum((right - left) * height for (left, height), (right, _) in itertools.pairwise(corners))
        for _, corners in chart.series
    ]
    assert areas == pytest.approx([areas[0]] * len(areas))
    assert max(y for _, corners in chart.series for _, y in corners) == 1
    for _, corners in chart.series:
        assert corners[0] == (0, 0)
        assert corners[-1] == (1, 0)
        assert [x for x, _ in corners] == sorted(x for x, _ in corners)


def test_a_step_of_a_histogram_is_as_high_as_its_share_of_the_class():
    table = pa.table({"label": ["class 0"] * 4, "brightness": [1.0, 1.0, 1.0, 100.0]})
    (chart,) = card.brightness(a_manifest([[4]]), table)
    ((_, corners),) = chart.series
    width = 1 / 32
    high = [corner for corner in corners if corner[1]]
    assert np.ravel(high) == pytest.approx([0, 1, width, 1, 1 - width, 1 / 3, 1, 1 / 3])
    assert [tick.text for tick in chart.y_ticks] == ["0", "20", "40", "60"]


def test_many_classes_share_one_histogram():
    names = tuple(f"class {n}" for n in range(20))
    table = pa.table({"label": names, "brightness": np.linspace(0, 200, 20)})
    (chart,) = card.brightness(a_manifest([[1] * 20], names), table)
    assert [name for name, _ in chart.series] == ["all classes"]


@given(low=st.just(0.0) | st.floats(-1e3, 1e3), span=st.floats(1e-3, 1e6))
def test_an_axis_has_a_few_round_marks(low, span):
    ticks = page.ticks(low, low + span)
    assert 2 <= len(ticks) <= 7
    assert low or ticks[0] == page.Tick(0, "0")
    assert all(-1e-6 <= tick.place <= 1 + 1e-6 for tick in ticks)
    steps = np.diff([tick.place for tick in ticks]) * span
    assert steps == pytest.approx(steps[0])
    assert f"{steps[0]:.0e}"[0] in "125"
