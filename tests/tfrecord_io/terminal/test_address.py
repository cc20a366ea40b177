import copy
import pickle

import pytest

from tfrecord_io.terminal.address import Address, is_inside, local_path
from tfrecord_io.terminal.errors import UserError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("data/me@home?", "data/me@home?"),
        ("gs://bucket//a/#b@c", "gs://bucket/a/#b@c"),
        ("az://container", "az://container"),
    ],
)
def test_an_address_is_shown_and_opened_as_it_was_given(given, expected):
    address = Address(given)
    for same in (
        address,
        Address(address),
        copy.deepcopy(address),
        pickle.loads(pickle.dumps(address)),
    ):
        assert (same, type(same)) == (expected, Address)
    assert Address("s3://bucket/a") / "b?.png" == "s3://bucket/a/b?.png"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "empty"),
        ("https://host/x.zip", "https://host/x.zip: expected s3://"),
        ("ftp://host/x.zip", "received ftp://"),
        ("https://me:secret@host/x.zip", "https://host/x.zip with a login"),
        ("https://host/x.zip?sig=secret", "https://host/x.zip with a login, \\? or signature"),
        ("az://container/x?sig=secret", "az://container/x with a login"),
        ("s3://me:secret@bucket/x", "s3://bucket/x with a login"),
    ],
)
def test_what_is_no_path_and_no_bucket_or_has_credentials_is_refused_without_them(given, message):
    with pytest.raises(UserError, match=message) as raised:
        Address(given)
    assert "secret" not in str(raised.value)


def test_a_local_path_is_no_url_and_a_folder_holds_what_is_below():
    with pytest.raises(UserError, match="expected local files, received s3://b/x"):
        local_path("s3://b/x")
    assert is_inside("s3://bucket/run/export", "s3://bucket/run/")
    assert not is_inside("s3://bucket/run2", "s3://bucket/run")
