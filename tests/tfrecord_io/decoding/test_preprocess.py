import pickle

import pytest

from tfrecord_io.decoding import preprocess
from tfrecord_io.decoding.options import Preprocessing
from tfrecord_io.decoding.rejects import Reject, as_rejects


@pytest.mark.parametrize("window", [None, (40.0, 400.0)])
def test_settings_read_back_from_the_manifest_as_they_were(window):
    settings = Preprocessing(height=9, channels=3, window=window, background="white")
    values = settings.to_dict()
    assert Preprocessing.from_dict(values) == settings
    del values["min_fill"]  # a dataset that does not name it kept every shape
    assert Preprocessing.from_dict(values).min_fill == 0
    assert values["dtype"] == "uint8"  # of which older readers ask
    assert not {"dtype", "no_window", "physical"} & settings.identity().keys()


@pytest.mark.parametrize(
    "change", [{"dtype": "uint16"}, {"physical": {"unit": "HU"}}, {"window": 5}, {"width": "x"}]
)
def test_settings_of_another_program_are_refused(change):
    with pytest.raises(ValueError, match="expected"):
        Preprocessing.from_dict(Preprocessing().to_dict() | change)


def test_frames_have_names_of_their_own_and_these_are_read_back():
    assert preprocess.split_frame_path(preprocess.frame_path("a.dcm", 3)) == ("a.dcm", 3)
    for name in ("a.dcm", "a#frame-0", "a#frame-03", "a#frame-x"):
        assert preprocess.split_frame_path(name) == (name, 0)
    assert preprocess.frame_path("a.dcm", 0) == preprocess.frame_path("a.dcm", None) == "a.dcm"


def test_a_reject_travels_between_processes():
    reject = Reject("truncated", "3 bytes are missing")
    again = pickle.loads(pickle.dumps(reject))
    assert (again.reason, again.detail, str(again)) == (reject.reason, reject.detail, str(reject))


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError(), ImportError("a codec")])
def test_what_the_machine_is_to_blame_for_is_no_reject(error):
    with pytest.raises(type(error)), as_rejects():
        raise error
