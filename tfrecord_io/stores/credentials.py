"""Settings of stores that obstore does not find itself; obstore.auth asks the stores' own tools.

obstore reads environment variables, the files of service accounts and the role of a machine. The
files of the AWS tools are read by boto3, all kinds of Google's by google-auth.
"""

from __future__ import annotations

import os
from typing import Any

from tfrecord_io.terminal.errors import UserError


def settings(scheme: str) -> dict[str, Any]:
    """Returns settings of a store, "s3", "gs" or "az"; UserError if credentials cannot be used."""
    return {"s3": _s3, "gs": _gcs, "az": _azure}[scheme]()


def _s3() -> dict[str, Any]:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if not os.environ.get(name, "http://").startswith(("http://", "https://")):
            raise UserError(f"{name} must start with http:// or https://")
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    try:
        import boto3
    except ImportError:
        return {}
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session(region_name=os.environ.get("AWS_REGION"))
        return {"credential_provider": Boto3CredentialProvider(session)}
    except BotoCoreError as error:  # such as a profile that does not exist
        raise UserError(f"cannot use s3://: {error}") from None
    except ValueError:  # boto3 has no credentials
        return {}


def _gcs() -> dict[str, Any]:
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        address = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": address, "bearer_token": "emulator"}
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        return {}
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    try:
        return {"credential_provider": GoogleCredentialProvider(google.auth.default([scope])[0])}
    except DefaultCredentialsError:
        return {}


def _azure() -> dict[str, Any]:
    if not (text := os.environ.get("AZURE_STORAGE_CONNECTION_STRING")):
        names = {"account_name": "AZURE_STORAGE_ACCOUNT", "account_key": "AZURE_STORAGE_KEY"}
        return {name: os.environ[known] for name, known in names.items() if known in os.environ}
    given = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    names = {
        "account_name": "AccountName",
        "account_key": "AccountKey",
        "sas_key": "SharedAccessSignature",
        "endpoint": "BlobEndpoint",
    }
    return {name: given[key] for name, key in names.items() if key in given}
