import itertools
from xml.etree import ElementTree

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from dataset_factory import bare_manifest
from hypothesis import given

from pipelines.report import card
from tfrecord_io.extras import shortcuts
from tfrecord_io.format.manifest import Shard, Split
from tfrecord_io.pages import charts


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
    dataset = a_manifest([[1200, 600, 0], [1, 1, 2], [0, 0, 0]])
    sizes = {name: split.num_examples for name, split in dataset.splits.items()}
    chart, small, empty = card.classes_of_splits(dataset, sizes)
    assert chart.title == "split0: 1,800 images"
    assert [bar.length for bar in chart.bars] == [1, 0.5, 0]
    assert [bar.value for bar in chart.bars] == ["1,200 (67 %)", "600 (33 %)", "0 (0 %)"]
    assert [bar.colour for bar in chart.bars] == [0, 1, 2]
    assert small.description.endswith("class 0 1 (25 %), class 1 1 (25 %), class 2 2 (50 %)")
    assert [bar.length for bar in empty.bars] == [0, 0, 0]


def test_patients_are_counted_by_how_many_images_they_have():
    patients = ["a"] + ["b"] * 2 + ["c"] * 2 + ["d"] * 7 + ["e"] * 120 + [None] * 50
    (chart,) = card.images_of_patients(pa.table({"patient": patients}))
    names = [text for _, text in chart.x.marks]
    assert names == ["1", "2", "3", "4", "5–9", "10–19", "20–49", "50–99", "100+"]
    heights = [height for _, height in chart.series[0].points][1:-1:2]
    assert heights == [1, 2, 0, 0, 1, 0, 0, 0, 1]
    assert "2 with 2, 1 with 5–9, 1 with 100+" in chart.description
    # The chart ends with the patient of most images.
    (short,) = card.images_of_patients(pa.table({"patient": ["a", "b", "b"]}))
    assert [text for _, text in short.x.marks] == ["1", "2"]


def test_side_facts_stand_beside_guessing_the_strongest_first():
    by_signal = {"original size": 0.2, "white border": 0.4}
    (chart,) = shortcuts.side_facts_of_classes(
        {"chance": 0.25, "accuracy": 0.5, "by_signal": by_signal}
    )
    assert [bar.name for bar in chart.bars] == ["all together", "white border", "original size"]
    assert [bar.length for bar in chart.bars] == pytest.approx([1, 0.8, 0.4])
    assert [bar.value for bar in chart.bars] == ["50 %", "40 %", "20 %"]
    assert chart.mark == ("guessing 25 %", 0.5)


def test_what_is_not_known_or_too_much_is_not_drawn():
    assert card.classes_of_splits(a_manifest([[1] * 1000]), {}) == []
    assert card.images_of_patients(pa.table({"patient": pa.nulls(2, pa.string())})) == []
    assert shortcuts.side_facts_of_classes(None) == []


LABELLED = st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 255, width=32))


@given(values=st.lists(LABELLED, min_size=1, max_size=200))
def test_a_histogram_shows_every_image_of_a_class_once(values):
    labels, brightness = zip(*values, strict=True)
    table = pa.table({"label": labels, "brightness": np.array(brightness)})
    names = tuple(sorted(set(labels)))
    (chart,) = shortcuts.brightness(a_manifest([[1] * len(names)], names), table)
    corners = [series.points for series in chart.series]
    areas = [
        sum((right - left) * height for (left, height), (right, _) in itertools.pairwise(outline))
        for outline in corners
    ]
    assert areas == pytest.approx([areas[0]] * len(areas))
    assert [series.name for series in chart.series] == (list(names) if len(names) > 1 else [""])
    for outline in corners:
        assert (outline[0], outline[-1]) == ((chart.x.low, 0), (chart.x.top, 0))
        assert [x for x, _ in outline] == sorted(x for x, _ in outline)
        assert all(0 <= y <= chart.y.top for _, y in outline)


def test_a_step_of_a_histogram_is_as_high_as_its_share_of_the_class():
    table = pa.table({"label": ["class 0"] * 4, "brightness": [1.0, 1.0, 1.0, 100.0]})
    (chart,) = shortcuts.brightness(a_manifest([[4]]), table)
    width = 102 / 32
    high = [corner for corner in chart.series[0].points if corner[1]]
    assert np.ravel(high) == pytest.approx([0, 75, width, 75, 102 - width, 25, 102, 25])
    assert [text for _, text in chart.y.marks] == ["0", "20", "40", "60"]
    # Many classes share one histogram.
    names = tuple(f"class {n}" for n in range(20))
    table = pa.table({"label": names, "brightness": np.linspace(0, 200, 20)})
    (chart,) = shortcuts.brightness(a_manifest([[1] * 20], names), table)
    assert [series.look for series in chart.series] == ["area"]


@given(low=st.just(0.0) | st.floats(-1e3, 1e3), span=st.floats(1e-3, 1e6))
def test_an_axis_has_a_few_round_marks(low, span):
    axis = charts.Axis.of("value", low, low + span)
    values = np.array([value for value, _ in axis.marks])
    assert 2 <= len(values) <= 7
    assert low or axis.marks[0] == (0, "0")
    assert ((values >= low - 1e-6 * span) & (values <= axis.top + 1e-6 * span)).all()
    steps = np.diff(values)
    assert steps == pytest.approx(steps[0])
    assert f"{steps[0]:.0e}"[0] in "125"


def test_marks_that_do_not_fit_beside_each_other_are_tilted_and_names_stay_inside():
    def chart(names):
        axes = {"x": charts.Axis.named("x", names), "y": charts.Axis.named("y", names)}
        return charts.Chart(title="t", description="d", **axes, cells=[charts.Cell(0, 0, [], 1)])

    short, long = chart("abc"), chart([f"a long name {place}" for place in range(9)])
    assert (short.is_tilted, long.is_tilted) == (False, True)
    assert long.left > short.left
    assert long.height > short.height


def test_a_file_shows_names_as_text_and_neighbouring_points_once():
    line = charts.Series("<b>&\x1b", [(0, 0), (0, 0.00001), (1, 1)])
    axis = charts.Axis.of("value", 0, 1)
    chart = charts.Chart(title="a < b", description='"', x=axis, y=axis, series=[line])
    assert len(chart.places(line)) == 2
    texts = [*ElementTree.fromstring(charts.svg_of([chart])).itertext()]
    assert {"a < b", "<b>&\\x1b"} <= set(texts)
