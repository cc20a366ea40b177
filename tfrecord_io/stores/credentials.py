"""Finds the settings and credentials of object stores where the stores' own tools look.

obstore itself reads environment variables and the role of a machine. This module adds the files of
the AWS tools and of Google's, and the variables of `az`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from tfrecord_io.terminal.errors import UserError


def settings(scheme: str) -> dict[str, Any]:
    """Returns what obstore does not find itself of the settings of a store, such as "s3".

    Raises:
        UserError: if the credentials cannot be used.
    """
    find = {"s3": _s3_settings, "gs": _gcs_settings, "az": _azure_settings}.get(scheme)
    return find() if find else {}


def _s3_settings() -> dict[str, Any]:
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        address = os.environ.get(variable, "")
        if address and not address.startswith(("http://", "https://")):
            raise UserError(
                f"the address of the S3 server ({variable}, --s3_endpoint_url) must start with "
                f"http:// or https://, received {address.rpartition('@')[2]!r}"
            )
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    try:
        import boto3
    except ImportError:
        file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        if "AWS_PROFILE" not in os.environ and not Path(file).expanduser().exists():
            return {}
        raise UserError(
            f"the credentials in {file} need boto3: run pip install '.[aws]' in the clone of this "
            "project, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session(region_name=os.environ.get("AWS_REGION"))
        if session.get_credentials() is None:
            return {}
    except BotoCoreError as error:  # such as a profile that does not exist
        raise UserError(f"cannot use s3://: {error}") from None
    return {"credential_provider": Boto3CredentialProvider(session)}


def _gcs_settings() -> dict[str, Any]:
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        address = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": address, "bearer_token": "emulator"}
    folder = os.environ.get("CLOUDSDK_CONFIG", "~/.config/gcloud")
    file = Path(
        os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        or f"{folder}/application_default_credentials.json"
    ).expanduser()
    try:
        kind = json.loads(file.read_text(encoding="utf-8"))["type"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if kind in ("service_account", "authorized_user"):  # obstore reads these itself
        return {"application_credentials": str(file)}
    try:
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        raise UserError(
            f"the credentials in {file} are of the kind {kind}, which needs google-auth; run "
            "pip install google-auth requests aiohttp"
        ) from None
    scope = "https://www.googleapis.com/auth/devstorage.read_write"
    return {"credential_provider": GoogleCredentialProvider(google.auth.default([scope])[0])}


def _azure_settings() -> dict[str, Any]:
    given = {
        "AccountName": os.environ.get("AZURE_STORAGE_ACCOUNT"),
        "AccountKey": os.environ.get("AZURE_STORAGE_KEY"),
    }
    if text := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        given = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    names = {
        "account_name": "AccountName",
        "account_key": "AccountKey",
        "sas_key": "SharedAccessSignature",
        "endpoint": "BlobEndpoint",
    }
    settings: dict[str, Any] = {name: given[key] for name, key in names.items() if given.get(key)}
    named = re.compile("AZURE_.*(KEY|TOKEN|SECRET|FILE|ENDPOINT|CLIENT_ID|SKIP_SIGNATURE|EMULATOR)")
    if not settings.keys() & {"account_key", "sas_key"} and not any(map(named.match, os.environ)):
        settings |= {"use_azure_cli": True} if shutil.which("az") else {}
    return settings
