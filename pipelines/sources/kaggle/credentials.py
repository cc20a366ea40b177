"""Finds Kaggle credentials in all places where the client looks, without using the client."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines import errors
from pipelines.sources.downloads import read_json, read_text

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


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The places where credentials were found, without the credentials themselves.

    Attributes:
        found: places that hold complete credentials, in the client's order of preference.
        problems: places that should hold credentials but do not, each with the reason.
    """

    found: tuple[str, ...]
    problems: tuple[str, ...]


def find_credentials() -> Credentials:
    """Looks in every place where the official client looks, in its order, without the network.

    The order is that of `KaggleApi.authenticate` and `kagglesdk.get_access_token_from_env`:
    access token (environment, then file), legacy key (environment before kaggle.json), OAuth.
    """
    found: list[str] = []
    problems: list[str] = []
    for look in (_find_token, _find_legacy_key, _find_oauth):
        look(found, problems)
    return Credentials(found=tuple(found), problems=tuple(problems))


def _find_token(found: list[str], problems: list[str]) -> None:
    notebook_file = os.environ.get("KAGGLE_API_V1_TOKEN")
    in_notebook = "KAGGLE_KERNEL_RUN_TYPE" in os.environ and "KAGGLE_DATA_PROXY_URL" in os.environ
    if in_notebook and notebook_file and read_text(Path(notebook_file)):
        found.append("KAGGLE_API_V1_TOKEN (Kaggle notebook)")
        return
    value = os.environ.get("KAGGLE_API_TOKEN")
    if value:
        # The client tests whether the value is the path of a file, and its error for a value that
        # is too long to be a path shows the token.
        try:
            is_path = Path(value).exists()
        except OSError:
            problems.append(
                "KAGGLE_API_TOKEN: it is longer than a path may be, which the client cannot "
                "handle. Save the token as ~/.kaggle/access_token and unset the variable."
            )
            return
        if is_path and not read_text(Path(value)):
            problems.append("KAGGLE_API_TOKEN: it names a file that is empty or cannot be read.")
        else:
            found.append("KAGGLE_API_TOKEN")
        return
    for name in ("access_token", "access_token.txt"):
        path = Path.home() / ".kaggle" / name
        if read_text(path):
            found.append(str(path))
            return
        if path.exists():
            problems.append(f"{path}: it is empty or cannot be read.")


def _find_legacy_key(found: list[str], problems: list[str]) -> None:
    from_environment = {key: os.environ.get(f"KAGGLE_{key.upper()}") for key in ("username", "key")}
    path = legacy_folder() / "kaggle.json"
    from_file = read_json(path)
    if all(from_environment.values()):
        found.append("KAGGLE_USERNAME and KAGGLE_KEY")
    elif all(from_environment[key] or from_file.get(key) for key in from_environment):
        given = [f"KAGGLE_{key.upper()}" for key, value in from_environment.items() if value]
        found.append(" and ".join([*given, str(path)]))
    else:
        missing = [key for key in from_environment if not from_environment[key]]
        if len(missing) == 1:
            problems.append(f"KAGGLE_{missing[0].upper()}: not set, but the other of the two is.")
        if path.exists():
            problems.append(f'{path}: expected a JSON object with "username" and "key".')


def _find_oauth(found: list[str], problems: list[str]) -> None:
    path = Path.home() / ".kaggle" / "credentials.json"
    if read_json(path).get("refresh_token"):
        found.append(f"{path} (kaggle auth login)")
    elif path.exists():
        problems.append(f"{path}: it holds no login. Run `kaggle auth login` again.")


def require_credentials() -> Credentials:
    """Returns where the credentials are.

    Raises:
        errors.UserError: if there are none; the message says how to get and set them.
    """
    credentials = find_credentials()
    if not credentials.found:
        lines = ["No Kaggle credentials were found."]
        if credentials.problems:
            lines = ["No usable Kaggle credentials were found."]
            lines += [f"  {problem}" for problem in credentials.problems]
        raise errors.UserError("\n".join([*lines, _HOW_TO_AUTHENTICATE]))
    return credentials


def legacy_folder() -> Path:
    """Returns the folder where the client looks for kaggle.json, as `KaggleApi.config_dir` does."""
    if os.environ.get("KAGGLE_CONFIG_DIR"):
        return Path(os.environ["KAGGLE_CONFIG_DIR"])
    folder = Path.home() / ".kaggle"
    if sys.platform.startswith("linux") and not folder.exists():
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(base) / "kaggle"
    return folder


def redacted(text: str) -> str:
    """Returns another program's text as one short line, with all credentials hidden.

    A server may repeat the credentials in its answer.
    """
    home = Path.home() / ".kaggle"
    secrets = [os.environ.get(name, "") for name in ("KAGGLE_API_TOKEN", "KAGGLE_KEY")]
    # KAGGLE_API_TOKEN may be the path of a file, as KAGGLE_API_V1_TOKEN always is.
    named = [os.environ.get(name, "") for name in ("KAGGLE_API_TOKEN", "KAGGLE_API_V1_TOKEN")]
    files = [home / "access_token", home / "access_token.txt", *map(Path, named)]
    secrets += [read_text(file) for file in files]
    for file in (legacy_folder() / "kaggle.json", home / "credentials.json"):
        stored = read_json(file)
        secrets += [str(stored.get(key) or "") for key in ("key", "refresh_token", "access_token")]
    for secret in filter(None, secrets):
        text = text.replace(secret, "[hidden]")
    text = re.sub(r"\?\S+", "?[hidden]", " ".join(text.split()))  # The signature of an address.
    return text if len(text) <= 200 else text[:200] + "…"


def refused_text(credentials: Credentials) -> str:
    """Returns the message for credentials that Kaggle does not accept."""
    lines = ["Kaggle refused the credentials. They were found in:"]
    lines += [f"  {place}" for place in credentials.found]
    lines += [f"  {problem}" for problem in credentials.problems]
    lines.append("They may be mistyped, expired or revoked; the client uses the first of them.")
    return "\n".join([*lines, _HOW_TO_AUTHENTICATE])
