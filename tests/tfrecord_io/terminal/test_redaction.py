"""Secrets and private names leave in no message, whoever wrote it."""

import copy
import json
import logging
import pickle
import sys

import pytest

from tfrecord_io.terminal import redaction
from tfrecord_io.terminal.address import Address
from tfrecord_io.terminal.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:password@host/x.zip is not there", "https://host/x.zip is not there"),
        ("s3://me@bucket/a?b", "s3://bucket/a?b"),
        ("'https://host/x.zip?X-Amz-Signature=abc#d' failed", "'https://host/x.zip' failed"),
        ("(http://host?sig=abc) and (http://host/)", "(http://host) and (http://host/)"),
        ("'https:/me:pass@host/x?sig=abc' is not a folder", "'https:/host/x' is not a folder"),
        ("mail me@host.org, or see train/a?b", "mail me@host.org, or see train/a?b"),
    ],
)
def test_user_names_passwords_and_signatures_are_removed_from_addresses(text, expected):
    assert redaction.without_secrets(text) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://me:it's@host:8443/a.zip?sig=x#y", "https://host:8443/a.zip"),
        ("HTTP://token@host", "HTTP://host"),
        ("s3://me:pa/ss@bucket/a?b", "s3://me:pa/ss@bucket/a?b"),
        ("gs://me@bucket/a?b", "gs://bucket/a?b"),
        ("data/me@home?", "data/me@home?"),
    ],
)
def test_an_address_is_shown_without_its_secrets_and_opened_with_them(given, expected):
    address = Address(given)
    copies = [copy.deepcopy(address), pickle.loads(pickle.dumps(address)), Address(address)]
    for each in [address, *copies]:
        assert (each, each.opened) == (expected, given)
        assert (str(each), repr(each), json.dumps(each)) == (
            expected,
            repr(expected),
            json.dumps(expected),
        )
    assert address.hides_something == (given != expected)


@pytest.mark.parametrize("password", ["pa/ss", "pa#ss", "pa?ss", "[pass"])
def test_an_address_whose_password_is_cut_off_is_refused_without_it(password):
    with pytest.raises(UserError, match="%2F and %23") as caught:
        Address(f"https://me:{password}@host/data")
    assert password not in str(caught.value)


def test_keys_of_the_environment_and_remembered_ones_are_hidden(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=Zm9v")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    redaction.remember("a token of Kaggle", "short")
    said = redaction.without_secrets(
        "wJalrXUtnFEMI, AccountKey=Zm9v, eu-central-1, a token of Kaggle, short"
    )
    assert said == "[hidden], [hidden], eu-central-1, [hidden], short"


def test_whatever_is_written_goes_without_secrets(capsys):
    logger = logging.getLogger("somebody's library")
    with redaction.redacted_output():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        print("print https://me:password@host")
        logger.error("log https://me:password@host")
        logger.removeHandler(handler)
    print("https://me:password@host", file=sys.stderr)
    said = capsys.readouterr()
    assert said.out == "print https://host\n"
    assert said.err == "log https://host\nhttps://me:password@host\n"


def test_a_traceback_that_ends_the_process_goes_without_secrets(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with redaction.redacted_output():
        pass
    sys.excepthook(RuntimeError, RuntimeError("http://me:password@host"), None)
    assert capsys.readouterr().err == "RuntimeError: http://host\n"
