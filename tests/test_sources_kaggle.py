"""The Kaggle source: downloads that go well, are interrupted, or meet a full disk."""

import json
import signal
import subprocess
import sys

import pytest
from kaggle_client_runs import ARCHIVE, CHUNK, NAME, ROOT, make_archive, wait_until
from kaggle_stand_in import (
    DATASET,
    STORAGE_HOST,
    TOKEN,
    Cut,
    Page,
    Refuse,
    Stall,
    WrongRange,
)

# --------------------------------------------------------------------------------------------------
# A download that goes well
# --------------------------------------------------------------------------------------------------


def test_a_download_leaves_the_archive_and_what_is_known_of_it(work):
    outcome = work.run()

    work.assert_downloaded(outcome)
    known = json.loads((work.downloads / f"{NAME}.verified.json").read_text())
    assert known == {
        "dataset": DATASET,
        "size": len(ARCHIVE),
        "mtime_ns": work.archive.stat().st_mtime_ns,
    }


def test_a_second_run_needs_no_network_no_credentials_and_no_client(work):
    work.assert_downloaded(work.run())
    requests_before = len(work.server.requests)
    sidecar_before = (work.downloads / f"{NAME}.verified.json").stat()

    again = work.run(token=None)

    work.assert_downloaded(again)
    assert "kaggle imported: False" in again.stdout
    assert len(work.server.requests) == requests_before
    sidecar = (work.downloads / f"{NAME}.verified.json").stat()
    assert (sidecar.st_ino, sidecar.st_mtime_ns) == (
        sidecar_before.st_ino,
        sidecar_before.st_mtime_ns,
    )


def test_an_archive_put_there_by_hand_is_checked_and_used_without_credentials(work):
    work.downloads.mkdir(parents=True)
    work.archive.write_bytes(ARCHIVE)

    outcome = work.run(token=None)

    work.assert_downloaded(outcome)
    assert work.server.requests == []


def test_the_storage_host_never_sees_the_credentials(work):
    work.keep_partial(CHUNK)

    work.assert_downloaded(work.run())

    assert len(work.server.calls("GET")) == 2
    for request in work.server.calls("GET"):
        assert request.host == STORAGE_HOST
        assert "Authorization" not in request.headers
    assert "Authorization" in work.server.calls("DownloadDataset")[0].headers


def test_the_progress_bars_say_what_is_done(work):
    outcome = work.run()

    work.assert_downloaded(outcome)
    assert f"downloading {NAME}: 100%" in outcome.stderr
    assert f"checking {NAME}: 100%" in outcome.stderr


def test_importing_the_module_does_nothing(work):
    code = "import sys, pipelines.sources.kaggle.download; print('kaggle' in sys.modules)"
    environment = work.server.environment(work.home, PYTHONPATH=str(ROOT), KAGGLE_API_TOKEN=TOKEN)
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (process.stdout, process.stderr) == ("False\n", "")
    assert work.server.requests == []
    assert list(work.home.iterdir()) == []


def test_the_home_folder_stays_as_it_was(work):
    work.assert_downloaded(work.run())

    assert list(work.home.iterdir()) == []


def test_the_bare_client_makes_a_folder_and_asks_the_network_when_it_is_imported(work):
    environment = work.server.environment(work.home, KAGGLE_API_TOKEN=TOKEN)
    subprocess.run([sys.executable, "-c", "import kaggle"], env=environment, check=True, timeout=60)

    assert (work.home / ".config" / "kaggle").is_dir()
    assert len(work.server.calls("IntrospectToken")) == 1


# --------------------------------------------------------------------------------------------------
# Interrupted downloads
# --------------------------------------------------------------------------------------------------


def test_cut_connection_resumes_from_the_partial_file(work):
    work.server.storage_faults += [None, Cut(after=2 * CHUNK + 1000)]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert work.ranges() == [None, None, None, f"bytes={2 * CHUNK}-"]
    resumed = work.server.calls("GET")[-1]
    assert resumed.status == 206
    assert resumed.sent == len(ARCHIVE) - 2 * CHUNK
    assert resumed.headers["If-Range"] == work.server.etag
    assert "the connection to the storage host broke" in outcome.stderr


def test_cuts_are_endless_as_long_as_each_attempt_brings_new_bytes(work):
    # An attempt is two requests: the client's, whose body nobody reads, and then the transfer's.
    work.server.storage_faults += [None, Cut(CHUNK + 1)] * 4

    outcome = work.run(retries={"max_retries": 1})

    work.assert_downloaded(outcome)
    assert work.ranges()[-1] == f"bytes={4 * CHUNK}-"


def test_cuts_that_bring_no_new_bytes_end_in_an_error_that_keeps_the_partial_file(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Cut(0)] * 10

    outcome = work.run()

    work.assert_failed(
        outcome, "broke", "Tried 3 times.", "262.1 kB of 1.2 MB are kept", "to resume"
    )
    assert len(work.server.calls("DownloadDataset")) == 3
    assert work.archive.read_bytes() == partial
    work.server.storage_faults.clear()
    work.assert_downloaded(work.run())


def test_a_killed_download_resumes_in_the_next_process(work):
    work.server.storage_faults += [None, Stall(after=3 * CHUNK)]
    process = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == 3 * CHUNK)
    process.send_signal(signal.SIGKILL)
    assert work.finish(process).code == -signal.SIGKILL

    work.assert_downloaded(work.run())

    assert work.ranges() == [None, None, None, f"bytes={3 * CHUNK}-"]
    assert work.server.calls("GET")[-1].sent == len(ARCHIVE) - 3 * CHUNK


def test_control_c_keeps_the_partial_file_and_gives_the_lock_back(work):
    work.server.storage_faults += [None, Stall(after=CHUNK)]
    process = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == CHUNK)
    process.send_signal(signal.SIGINT)

    assert work.finish(process).code != 0
    assert sorted(work.downloads.iterdir()) == [work.archive, work.marker]
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_a_download_that_was_killed_before_its_last_note_is_not_fetched_again(work):
    work.keep_partial(len(ARCHIVE))
    work.server.storage_faults += [Cut(0)]  # Only the headers come: the bytes are not needed.

    work.assert_downloaded(work.run())

    assert work.ranges() == [None]


def test_an_expired_storage_address_costs_nothing_but_a_fresh_one(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Refuse(403, "ExpiredToken")]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert work.ranges() == [None, f"bytes={len(partial)}-"] * 2
    signatures = [request.query["X-Goog-Signature"] for request in work.server.calls("GET")]
    assert signatures[0] != signatures[-1]
    assert "address has expired" in outcome.stderr


def test_addresses_that_expire_at_once_leave_the_partial_file_as_it_was(work):
    partial = work.keep_partial(CHUNK)
    work.server.uses_of_an_address = 1  # The second use is the request for the range.

    outcome = work.run()

    work.assert_failed(outcome, "address has expired", f"are kept in {work.archive}")
    assert [request.status for request in work.server.calls("GET")] == [200, 403] * 3
    assert work.archive.read_bytes() == partial
    work.server.uses_of_an_address = None
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_the_bare_client_writes_an_expired_address_s_error_over_the_partial_file(work):
    partial = work.keep_partial(CHUNK)
    work.server.uses_of_an_address = 1

    outcome = work.run(bare_client=True)

    assert "ValueError: Downloaded file size" in outcome.stderr
    assert work.archive.read_bytes() != partial
    assert b"ExpiredToken" in work.archive.read_bytes()
    # Worse: the marker is still good, so the next run resumes on top of the error's body.
    work.server.uses_of_an_address = None
    assert work.run(bare_client=True).code == 0
    assert work.archive.stat().st_size == len(ARCHIVE)
    assert work.archive.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("status", [401, 404, 416, 429, 500, 503])
def test_no_refusal_of_the_storage_touches_the_partial_file(work, status):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, Refuse(status)]

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, f"HTTP {status}", f"The storage host {STORAGE_HOST}")
    assert work.archive.read_bytes() == partial


@pytest.mark.parametrize("faults", [[Page()], [None, Page()]], ids=["at first", "for the range"])
def test_a_page_in_the_archive_s_place_is_not_taken_for_it(work, faults):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += faults

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, "did not send the archive", "a login in the browser")
    assert work.archive.read_bytes() == partial
    work.assert_downloaded(work.run())


def test_a_page_from_the_api_is_not_taken_for_the_archive(work):
    # With an old date, which is what makes the bare client believe that it has nothing to do.
    work.server.api_faults += [Page({"Last-Modified": "Mon, 01 Jan 2001 00:00:00 GMT"})]
    partial = work.keep_partial(CHUNK)

    outcome = work.run(retries={"max_retries": 0})

    work.assert_failed(outcome, "expected a zip archive, got text/html")
    assert work.archive.read_bytes() == partial


def test_another_range_than_the_one_asked_for_is_not_appended(work):
    partial = work.keep_partial(CHUNK)
    work.server.storage_faults += [None, WrongRange()]

    outcome = work.run()

    work.assert_downloaded(outcome)
    assert f"asked for bytes from {len(partial)}" in outcome.stderr


def test_an_archive_that_changed_on_kaggle_is_downloaded_anew(work):
    work.keep_partial(CHUNK)
    work.server.archive = make_archive(seed=2)
    work.server.etag = '"second-version"'

    work.assert_downloaded(work.run())

    assert work.ranges() == [None, None]


@pytest.mark.parametrize("missing", ["ranges", "ETag"])
def test_a_storage_without_ranges_or_without_an_etag_still_gives_the_archive(work, missing):
    if missing == "ranges":
        work.server.accepts_ranges = False
    else:
        work.server.etag = None  # The client then goes by Last-Modified.
    work.server.storage_faults += [None, Cut(CHUNK + 1)]

    work.assert_downloaded(work.run())

    assert work.ranges() == [None, None, None, f"bytes={CHUNK}-"]


@pytest.mark.parametrize("where", ["the login", "the API", "the storage", "the range"])
def test_a_connection_that_falls_silent_is_given_up_and_tried_again(work, where):
    if where == "the login":
        work.server.login_faults += [Stall(after=None)]
    elif where == "the API":
        work.server.api_faults += [Stall(after=None)]
    elif where == "the storage":
        work.server.storage_faults += [None, Stall(after=CHUNK + 1)]
    else:
        work.keep_partial(CHUNK)
        work.server.storage_faults += [None, Stall(after=CHUNK)]

    outcome = work.run(retries={"timeout_s": 1.0})

    work.assert_downloaded(outcome)
    assert "sent nothing for 1 s" in outcome.stderr
    assert outcome.seconds < 15


# --------------------------------------------------------------------------------------------------
# The disk, and others who use it
# --------------------------------------------------------------------------------------------------


def test_a_disk_too_small_is_an_error_before_the_first_byte(work):
    work.server.claimed_size = 10**15

    outcome = work.run()

    work.assert_failed(outcome, "free, but", "1000000.0 GB", "--download_dir")
    assert not work.downloads.parent.exists()


def test_a_disk_that_fills_up_is_an_error_that_says_so(work):
    work.downloads.mkdir(parents=True)
    work.archive.symlink_to("/dev/full")

    outcome = work.run()

    work.assert_failed(outcome, f"{work.archive} could not be written: the disk is full")
    assert list(work.downloads.iterdir()) == []


def test_a_file_that_may_not_grow_keeps_its_bytes_and_resumes_where_it_may(work):
    outcome = work.run(limit_bytes=3 * CHUNK)

    work.assert_failed(outcome, "larger than this file system", "to resume")
    assert work.archive.stat().st_size == 3 * CHUNK
    work.assert_downloaded(work.run())
    assert work.ranges()[-1] == f"bytes={3 * CHUNK}-"


def test_a_file_in_the_folder_s_place_is_explained(work):
    work.downloads.parent.mkdir()
    work.downloads.write_text("not a folder")

    work.assert_failed(work.run(), f"{work.downloads} could not be written", "--download_dir")


def test_a_second_download_at_once_is_refused_and_names_the_first(work):
    work.server.storage_faults += [None, Stall(after=CHUNK)]
    first = work.start()
    wait_until(lambda: work.archive.exists() and work.archive.stat().st_size == CHUNK)
    calls_before = len(work.server.requests)

    second = work.run()

    work.assert_failed(second, "by another process", f"process id {first.pid}", "Wait until")
    assert len(work.server.requests) == calls_before
    assert work.archive.stat().st_size == CHUNK
    first.send_signal(signal.SIGKILL)
    work.finish(first)
    work.assert_downloaded(work.run())  # The dead process's lock file is still there.


def test_the_same_name_of_another_owner_is_not_mistaken_for_it(work):
    work.assert_downloaded(work.run())

    outcome = work.run(dataset="someone-else/tiny-scans")

    work.assert_failed(outcome, f"is the archive of {DATASET}, not of someone-else/tiny-scans")
