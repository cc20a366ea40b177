"""Where stores' settings come from, and where they do not go."""

import json
import os
from unittest import mock

import pytest
from s3_server import BUCKET, KEY_ID, SECRET_KEY

from pipelines import errors
from tfrecord_io.stores import credentials, remote


@pytest.fixture(autouse=True)
def clean_environment(tmp_path):
    """No settings but those of the test; they are forgotten afterwards."""
    theirs = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    with mock.patch.dict(os.environ, {**kept, "HOME": str(tmp_path)}, clear=True):
        yield
    remote.forget_stores()


@pytest.mark.parametrize("profile", ["default", "clinic"])
def test_keys_in_the_files_of_the_aws_tools_are_found(s3_server, tmp_path, monkeypatch, profile):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[{profile}]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    if profile != "default":
        monkeypatch.setenv("AWS_PROFILE", profile)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    remote.forget_stores()
    with remote.create(f"s3://{BUCKET}/file") as file:
        file.write(b"signed")
    assert remote.read_file(f"s3://{BUCKET}/file") == b"signed"


def test_a_profile_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(errors.UserError, match="nobody"):
        credentials.settings("s3")


@pytest.mark.slow
def test_googles_file_is_read_by_googles_package(tmp_path, monkeypatch):
    pytest.importorskip("google.auth", reason="needs pip install 'apache-beam[gcp]'")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    assert credentials.settings("gs") == {}
    keys = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(keys))
    provider = credentials.settings("gs")["credential_provider"]
    assert provider.credentials.refresh_token == "c"


def test_the_variables_of_the_az_command_are_known(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "clinic")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "key=")
    assert credentials.settings("az") == {"account_name": "clinic", "account_key": "key="}
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", "AccountName=other;AccountKey=k==;EndpointSuffix=x"
    )
    assert credentials.settings("az") == {"account_name": "other", "account_key": "k=="}
