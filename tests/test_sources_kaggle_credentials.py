"""Credentials for Kaggle, found in every place where the real client looks."""

import os

import pytest
from kaggle_client_runs import CHUNK, LEGACY_KEY, write_file
from kaggle_stand_in import (
    KEY,
    REFRESH_TOKEN,
    TOKEN,
    USERNAME,
    Cut,
    Refuse,
)

from pipelines.sources.kaggle.credentials import find_credentials


def test_without_credentials_every_way_is_named_and_nothing_is_made(work):
    outcome = work.run(token=None)

    work.assert_failed(
        outcome,
        "No Kaggle credentials were found.",
        "https://www.kaggle.com/settings/api",
        "KAGGLE_API_TOKEN",
        "the path of a file",
        "~/.kaggle/access_token",
        "kaggle auth login",
        "KAGGLE_USERNAME",
        "KAGGLE_KEY",
        "~/.kaggle/kaggle.json",
        "--source synthetic",
        kind="UserError",
    )
    assert outcome.stdout == ""
    assert "Authentication required" not in outcome.stderr
    assert work.server.requests == []
    assert list(work.home.iterdir()) == []
    assert not work.downloads.parent.exists()


def test_the_bare_client_without_credentials_exits_the_process(work):
    outcome = work.run(token=None, bare_client=True)

    assert outcome.code == 1
    assert "Authentication required" in outcome.stdout


# Each way: files in the home folder, environment variables ({home} is filled in), the place named.
WAYS = {
    "a token": ({}, {"KAGGLE_API_TOKEN": TOKEN}, "KAGGLE_API_TOKEN"),
    "the path of a token": (
        {"my-token": TOKEN + "\n"},
        {"KAGGLE_API_TOKEN": "{home}/my-token"},
        "KAGGLE_API_TOKEN",
    ),
    "a token file": ({".kaggle/access_token": TOKEN}, {}, ".kaggle/access_token"),
    "a token file of Windows": ({".kaggle/access_token.txt": TOKEN}, {}, "access_token.txt"),
    "a Kaggle notebook": (
        {"v1-token": TOKEN},
        {
            "KAGGLE_KERNEL_RUN_TYPE": "Interactive",
            "KAGGLE_DATA_PROXY_URL": "http://proxy.stand-in",
            "KAGGLE_API_V1_TOKEN": "{home}/v1-token",
        },
        "KAGGLE_API_V1_TOKEN",
    ),
    "a legacy key": (
        {},
        {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY},
        "KAGGLE_USERNAME and KAGGLE_KEY",
    ),
    "kaggle.json": ({".kaggle/kaggle.json": LEGACY_KEY}, {}, ".kaggle/kaggle.json"),
    "kaggle.json in XDG's folder": (
        {".config/kaggle/kaggle.json": LEGACY_KEY},
        {},
        ".config/kaggle/kaggle.json",
    ),
    "kaggle.json elsewhere": (
        {"settings/kaggle.json": LEGACY_KEY},
        {"KAGGLE_CONFIG_DIR": "{home}/settings"},
        "settings/kaggle.json",
    ),
    "a user name beside kaggle.json": (
        {".kaggle/kaggle.json": {"key": KEY}},
        {"KAGGLE_USERNAME": USERNAME},
        "KAGGLE_USERNAME and ",
    ),
    "an OAuth login": (
        {".kaggle/credentials.json": {"refresh_token": REFRESH_TOKEN, "username": USERNAME}},
        {},
        "kaggle auth login",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_give_credentials_works_and_is_named(work, way, monkeypatch):
    files, variables, place = WAYS[way]
    for name, content in files.items():
        write_file(work.home / name, content)
    variables = {name: value.format(home=work.home) for name, value in variables.items()}

    outcome = work.run(token=None, environment=variables)
    for name in [name for name in os.environ if name.startswith(("KAGGLE_", "XDG_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(work.home), **variables}.items():
        monkeypatch.setenv(name, value)
    found = find_credentials().found

    assert len(found) == 1
    assert place in found[0]
    work.assert_downloaded(outcome)


UNUSABLE = {
    "a user name alone": ({}, {"KAGGLE_USERNAME": USERNAME}, "KAGGLE_KEY: not set"),
    "an empty token file": ({".kaggle/access_token": " \n"}, {}, "access_token: it is empty"),
    "a token that names an empty file": (
        {"my-token": ""},
        {"KAGGLE_API_TOKEN": "{home}/my-token"},
        "KAGGLE_API_TOKEN: it names a file that is empty",
    ),
    "a token too long for the client": (
        {},
        {"KAGGLE_API_TOKEN": TOKEN * 30},
        "KAGGLE_API_TOKEN: it is longer than a path may be",
    ),
    "kaggle.json cut short": (
        {".kaggle/kaggle.json": f'{{"username": "{USERNAME}", "key": "{KEY}'},
        {},
        'kaggle.json: expected a JSON object with "username" and "key"',
    ),
    "an OAuth file without a login": (
        {".kaggle/credentials.json": {"access_token": TOKEN}},
        {},
        "credentials.json: it holds no login",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_credentials_are_named_with_the_reason_and_nothing_is_made(work, case):
    files, variables, reason = UNUSABLE[case]
    for name, content in files.items():
        write_file(work.home / name, content)
    variables = {name: value.format(home=work.home) for name, value in variables.items()}

    outcome = work.run(token=None, environment=variables)

    work.assert_failed(
        outcome,
        "No usable Kaggle credentials",
        reason,
        "--source synthetic",
        kind="UserError",
    )
    assert work.server.requests == []
    assert not work.downloads.parent.exists()


def test_a_token_that_kaggle_does_not_know_is_refused_by_place_not_by_value(work):
    wrong = "KGAT_no_such_token"

    outcome = work.run(token=wrong)

    work.assert_failed(
        outcome, "Kaggle refused", "found in:\n  KAGGLE_API_TOKEN\n", kind="UserError"
    )
    assert wrong not in outcome.stdout + outcome.stderr
    assert "Authentication required" not in outcome.stderr
    assert not work.downloads.parent.exists()


def test_an_unknown_token_beside_a_good_key_is_named_first(work):
    # The client then logs in with the key, and sends the token all the same.
    variables = {"KAGGLE_USERNAME": USERNAME, "KAGGLE_KEY": KEY}

    outcome = work.run(token="KGAT_no_such_token", environment=variables)

    places = "found in:\n  KAGGLE_API_TOKEN\n  KAGGLE_USERNAME and KAGGLE_KEY\n"
    work.assert_failed(outcome, places, kind="UserError")


def test_a_revoked_login_is_a_matter_of_credentials(work):
    work.server.login_faults += [Refuse(401, "Unauthenticated")]

    work.assert_failed(work.run(), "Kaggle refused", kind="UserError")


def test_a_key_file_that_others_can_read_is_warned_of(work):
    write_file(work.home / ".kaggle" / "kaggle.json", LEGACY_KEY)
    (work.home / ".kaggle" / "kaggle.json").chmod(0o644)

    outcome = work.run(token=None)

    work.assert_downloaded(outcome)
    assert "readable by other users" in outcome.stderr


def test_verbose_in_the_environment_shows_no_credentials(work):
    work.assert_downloaded(work.run(environment={"VERBOSE": "1", "VERBOSE_OUTPUT": "1"}))


def test_the_bare_client_shows_credentials_where_the_environment_is_verbose(work):
    outcome = work.run(bare_client=True, environment={"VERBOSE": "1"})

    assert f"Authorization: Bearer {TOKEN}" in outcome.stdout


def test_a_client_that_was_imported_verbose_does_not_read_the_archive_into_memory(work):
    # It would then lose at a cut what it has read, instead of resuming.
    work.server.storage_faults += [None, Cut(after=CHUNK + 1)]

    outcome = work.run(import_client_first=True, environment={"VERBOSE": "1"})

    work.assert_downloaded(outcome)
    assert work.ranges()[-1] == f"bytes={CHUNK}-"


def test_debug_logging_shows_no_credentials_and_no_signed_address(work):
    outcome = work.run(debug_logging=True)  # The check is in every run.

    work.assert_downloaded(outcome)


@pytest.mark.parametrize("way", ["a token", "the path of a token", "a Kaggle notebook"])
def test_a_credential_that_a_server_echoes_is_hidden(work, way):
    files, variables, _ = WAYS[way]
    for name, content in files.items():
        write_file(work.home / name, content)
    variables = {name: value.format(home=work.home) for name, value in variables.items()}
    work.server.api_faults += [Refuse(403, f"no rights for {TOKEN}")]

    outcome = work.run(token=None, environment=variables)

    work.assert_failed(outcome, "no rights for [hidden]")
