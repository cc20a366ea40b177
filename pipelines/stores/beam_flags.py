"""Beam's flags for object stores, which become environment variables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from tfrecord_io.stores import remote

# The flags, with the equivalent environment variables.
_SECRET_FLAGS = {
    "s3_access_key_id": "AWS_ACCESS_KEY_ID",
    "s3_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "s3_session_token": "AWS_SESSION_TOKEN",
    "azure_connection_string": "AZURE_STORAGE_CONNECTION_STRING",
}
_FLAGS = {
    "s3_endpoint_url": "AWS_ENDPOINT_URL_S3",
    "s3_region_name": "AWS_REGION",
    "s3_verify": "AWS_CA_BUNDLE",
    "blob_service_endpoint": "AZURE_STORAGE_ENDPOINT",
}


def use(beam_args: Sequence[str]) -> tuple[str, ...]:
    """Copies Beam's flags for stores into environment variables, which child processes inherit.

    Returns the flags without those that hold a secret, which Beam would copy into the job's
    description. Workers on other machines use the credentials of their own environment.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in (*_SECRET_FLAGS, *_FLAGS):
        parser.add_argument(f"--{flag}")
    given, rest = parser.parse_known_args(list(beam_args))
    values = {flag: value for flag, value in vars(given).items() if value is not None}
    if "s3_secret_access_key" in values:
        os.environ.pop("AWS_SESSION_TOKEN", None)  # it belongs to another key
    os.environ.update({(_SECRET_FLAGS | _FLAGS)[flag]: value for flag, value in values.items()})
    remote.forget_stores()
    return (*rest, *(f"--{flag}={value}" for flag, value in values.items() if flag in _FLAGS))


def for_beam_alone(beam_args: Sequence[str]) -> list[str]:
    """Returns the flags that the build itself does not act on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("runner", "direct_num_workers", "direct_running_mode", *_FLAGS):
        parser.add_argument(f"--{flag}")
    return parser.parse_known_args(list(beam_args))[1]


def use_those_of_job() -> None:
    """On a worker of a remote engine, copies the user's flags for stores into the environment."""
    from apache_beam.options.value_provider import RuntimeValueProvider

    for flag, variable in _FLAGS.items():
        if value := RuntimeValueProvider.get_value(flag, str, None):
            os.environ.setdefault(variable, value)
