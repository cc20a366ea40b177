"""What the user is told of the network's and Kaggle's faults, with the real client."""

import time
from email.utils import formatdate

import pytest
import requests
from kaggle_stand_in import (
    DATASET,
    KEY,
    Refuse,
    StandIn,
)

from pipelines.sources.kaggle.download import check_dataset_name
from pipelines.sources.kaggle.problems import _retry_after


@pytest.mark.slow
def test_too_many_requests_waits_as_long_as_it_is_asked_to(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "2"})]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert outcome.seconds > 2
    assert "HTTP 429" in outcome.stderr
    assert "Trying again in 2.0 s (retry 1 of 2)" in outcome.stderr


def test_too_many_requests_without_end_is_an_error(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "0"})] * 10

    outcome = work.run()

    work.assert_failed(outcome, "too many requests", "HTTP 429", "Tried 3 times.")
    assert len(work.server.calls("DownloadDataset")) == 3
    assert not work.downloads.parent.exists()


def test_too_long_a_wait_is_an_error_that_says_when_to_come_back(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "3600"})]

    work.assert_failed(work.run(), "HTTP 429", "asks to wait 3600 s; run the same command again")

    assert len(work.server.calls("DownloadDataset")) == 1


def test_the_bare_client_does_not_wait_on_too_many_requests(work):
    work.server.api_faults += [Refuse(429, headers={"Retry-After": "0"})]

    outcome = work.run(bare_client=True)

    assert outcome.code == 1
    assert "HTTPError" in outcome.stderr


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7), (" 0 ", 0), ("", None), ("soon", None), ("-5", None)]
)
def test_retry_after_is_read_as_seconds(value, seconds):
    response = requests.Response()
    response.headers["Retry-After"] = value

    assert _retry_after(response) == seconds


def test_retry_after_is_read_as_a_date():
    response = requests.Response()
    response.headers["Retry-After"] = formatdate(time.time() + 100, usegmt=True)
    assert 95 < _retry_after(response) <= 101
    response.headers["Retry-After"] = formatdate(time.time() - 100, usegmt=True)
    assert _retry_after(response) == 0


@pytest.mark.parametrize(
    ("status", "texts"),
    [
        (400, ("refused the download", "HTTP 400: the stand-in refuses")),
        (401, ("Kaggle refused the credentials", "KAGGLE_API_TOKEN")),
        (
            403,
            ("HTTP 403: the stand-in refuses", "terms or rules", f"kaggle.com/datasets/{DATASET}"),
        ),
        (404, (f"no dataset {DATASET}", "HTTP 404: the stand-in refuses", "OWNER/NAME")),
    ],
)
def test_a_refusal_is_explained_at_once_and_leaves_nothing_behind(work, status, texts):
    work.server.api_faults += [Refuse(status)] * 10
    kind = "UserError" if status == 401 else "BuildError"

    work.assert_failed(work.run(), *texts, kind=kind)

    assert len(work.server.calls("DownloadDataset")) == 1
    assert not work.downloads.parent.exists()


def test_a_wrong_dataset_name_is_an_error_that_names_it(work):
    work.assert_failed(work.run(dataset="reader/no-such-scans"), "no dataset reader/no-such-scans")


def test_a_fault_of_the_server_is_tried_again(work):
    work.server.login_faults += [Refuse(502)]
    work.server.api_faults += [Refuse(503)]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert "HTTP 502" in outcome.stderr
    assert "HTTP 503" in outcome.stderr


def test_a_fault_of_the_server_without_end_is_an_error(work):
    work.server.api_faults += [Refuse(500)] * 10

    work.assert_failed(work.run(), "HTTP 500", "Tried 3 times.", "again later")

    assert len(work.server.calls("DownloadDataset")) == 3


def test_no_name_resolution_is_explained(work):
    outcome = work.run(no_dns=True, environment={"http_proxy": ""})

    work.assert_failed(outcome, "the name localhost could not be resolved (DNS)", "Tried 3 times.")
    assert not work.downloads.parent.exists()


def test_a_proxy_that_is_not_there_is_explained_without_its_password(work):
    # Nothing listens on a port that was just given back.
    with StandIn(b"") as gone:
        port = gone.address.rsplit(":", 1)[1]
    proxy = f"http://me:{KEY}@127.0.0.1:{port}"

    outcome = work.run(environment={"http_proxy": proxy})

    work.assert_failed(outcome, "the proxy named in http_proxy")


def test_a_missing_module_of_the_client_is_explained(work):
    # kaggle 2.2.4 imports six without requiring it.
    outcome = work.run(missing_module="six")

    work.assert_failed(outcome, "could not be imported", "six", "pip install kaggle six")
    assert not work.downloads.parent.exists()


@pytest.mark.parametrize("name", ["kermany2018", "a/b/c", "../b", "a/..", "a/b.zip", "", "a b/c"])
def test_a_dataset_name_of_another_form_is_refused(name):
    with pytest.raises(ValueError, match="OWNER/NAME") as error:
        check_dataset_name(name)
    assert repr(name) in str(error.value)
