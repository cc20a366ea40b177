"""Finds Kaggle credentials where the official client looks for them.

It uses `kagglesdk`, the library inside the `kaggle` command. Importing `kaggle` itself would log
in, print, make folders and end the process if there are no credentials.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from pipelines import errors
from pipelines.sources.downloads import read_json

_HOW_TO_AUTHENTICATE = """\
Kaggle needs credentials, and they are free: sign in at https://www.kaggle.com, open
https://www.kaggle.com/settings/api and generate a token. Then do one of these:
  export KAGGLE_API_TOKEN=TOKEN        the token itself, or the path of a file that holds it
  save it as ~/.kaggle/access_token    (chmod 600)
  kaggle auth login                    log in with the browser (OAuth), no token to copy
or, with a legacy API key (a user name and a key):
  export KAGGLE_USERNAME=NAME KAGGLE_KEY=KEY
  save its kaggle.json as ~/.kaggle/kaggle.json    (chmod 600)
To try the build without an account, run with --source synthetic, which needs no credentials."""


class Login(NamedTuple):
    """Credentials: a token, or a user name and a key, or neither after `kaggle auth login`.

    `place` says where they were found, for messages.
    """

    place: str
    token: str = ""
    username: str = ""
    key: str = ""

    def auth(self) -> Any:
        """Returns the credentials for `requests`, after asking Kaggle for a token if need be.

        Raises:
            requests.RequestException: if Kaggle does not answer, or refuses.
        """
        from kagglesdk import KaggleClient, KaggleCredentials
        from kagglesdk.kaggle_http_client import KaggleHttpClient

        if self.key:
            return self.username, self.key
        with KaggleClient() as client:
            token = self.token or KaggleCredentials.load(client).get_access_token()
        return KaggleHttpClient.BearerAuth(token)


def find_login() -> Login:
    """Returns the credentials that the official client would use, without the network.

    Its order is: access token, user name and key, login with the browser.

    Raises:
        errors.UserError: if there are none; the message says how to get and set them.
        errors.BuildError: if the official library is not installed.
    """
    try:
        from kagglesdk import get_access_token_from_env
    except ImportError as error:
        raise errors.BuildError(
            f"Kaggle's library could not be imported ({error}).\nInstall it with: pip install "
            "kaggle six\nTo try the build without Kaggle, run with --source synthetic."
        ) from None
    try:
        token, place = get_access_token_from_env()
    except (OSError, ValueError):  # such as a token that is longer than a path may be
        raise _no_login("The access token for Kaggle cannot be read.") from None
    if token:
        return Login(str(place), token=token)
    stored = read_json(_kaggle_json())
    username = os.environ.get("KAGGLE_USERNAME") or stored.get("username")
    key = os.environ.get("KAGGLE_KEY") or stored.get("key")
    if username and key:
        return Login(f"KAGGLE_USERNAME, KAGGLE_KEY or {_kaggle_json()}", "", username, key)
    if read_json(_oauth_file()).get("refresh_token"):
        return Login(f"{_oauth_file()} (kaggle auth login)")
    raise _no_login("No Kaggle credentials were found.")


def refused(login: Login) -> errors.UserError:
    """Returns the error for credentials that Kaggle does not accept."""
    return errors.UserError(
        f"Kaggle refused the credentials, which were found in {login.place}.\n"
        f"They may be mistyped, expired or revoked.\n{_HOW_TO_AUTHENTICATE}"
    )


def _no_login(problem: str) -> errors.UserError:
    """Returns an error that also names the places that hold something, but no credentials."""
    variables = ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY")
    files = (Path.home() / ".kaggle" / "access_token", _kaggle_json(), _oauth_file())
    places = [name for name in variables if name in os.environ]
    places += [str(file) for file in files if file.exists()]
    unusable = [f"Empty, incomplete or damaged: {', '.join(places)}"] if places else []
    return errors.UserError("\n".join([problem, *unusable, _HOW_TO_AUTHENTICATE]))


def _kaggle_json() -> Path:
    given = os.environ.get("KAGGLE_CONFIG_DIR")
    xdg = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folders = [Path(given)] if given else [Path.home() / ".kaggle", xdg / "kaggle"]
    files = [folder / "kaggle.json" for folder in folders]
    return next((file for file in files if file.exists()), files[0])


def _oauth_file() -> Path:
    return Path.home() / ".kaggle" / "credentials.json"
