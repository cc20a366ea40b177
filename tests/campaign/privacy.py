"""Commands that are given passwords, signatures and keys: nothing that they write may hold one.

Half of them meet a server that fails, damaged data or a wrong flag, and some are killed. What holds
patients' images or names must be its owner's alone in the end, whatever the umask is.
"""

import base64
import contextlib
import functools
import json
import os
import random
import string
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import builds
import kaggle_stand_in
import marked_images
import pyarrow.parquet as pq
import s3_server
from image_files import scan_tree, write_tree, write_zip
from web_server import WebFile, WebServer, running_web

from campaign import damage, kills, trainings
from campaign.case import Case
from campaign.processes import Run, home, undisturbed
from tfrecord_io.stores import remote

#: What a server answers to some requests.
_FAULTS = ("404", "403", "500", "cut", "half", "garbled", "short", "refused", "whole")
_TRAINING = marked_images.flags(**marked_images.SMALL_RUN | {"epochs": 1})

#: A command, its arguments and its environment.
_Call = tuple[str, Sequence[str], Mapping[str, str]]


class _Web:
    """Files that are served to who has a login, or a signature, and the address with these."""

    def __init__(self, case: Case, server: WebServer) -> None:
        self.server, self.case = server, case
        words = ["".join(case.rng.choices(string.ascii_letters, k=12)) for _ in range(4)]
        self.user, *password, self.signature = words
        self.password = case.pick(*"@:%+ ").join(password)
        if case.happens(0.1):
            self.password = case.pick("/", "#", "?").join(password)
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        self.login, self.secrets = f"Basic {login}", [*words, login]
        self.uploaded: Callable[[], Mapping[str, bytes]] = dict

    def url(self, path: str, query: str = "") -> str:
        quote = str if self.case.happens(0.1) else functools.partial(urllib.parse.quote, safe="")
        login = f"{quote(self.user)}:{quote(self.password)}@"
        return self.server.url(path).replace("://", f"://{login}") + query

    def dataset(self, folder: Path) -> str:
        """Serves a dataset, now and then with another manifest; returns its address."""
        self.server.serve(folder)
        for file in self.server.files.values():
            file.login = self.login
        if self.case.happens(0.15):
            copy = write_tree(self.case.folder, {"m.json": (folder / "manifest.json").read_bytes()})
            self.case.what += f"; {damage.alter_json(self.case.rng, copy / 'm.json')}"
            self.server.files["data/manifest.json"].content = (copy / "m.json").read_bytes()
        return self.url("data", f"?signature={self.signature}" if self.case.happens(0.1) else "")


def _build(case: Case, web: _Web) -> _Call:
    """Builds of a zip behind a login and a signature, or of a tar.gz with a secret."""
    output, more = case.folder / "output", ["--max_reject_fraction=0.5", kills.IN_MEMORY]
    if case.happens(0.5):
        secret = case.rng.randbytes(32).hex()
        web.secrets.append(secret)
        folder = write_tree(case.folder / "private", {"secret.txt": secret.encode()})
        more += [f"--anonymize={folder / 'secret.txt'}"]
    if case.happens(0.4):
        return _BUILD, builds.arguments(kills.source("tar.gz"), output, *more), {}
    content = write_zip(case.folder / "in.zip", scan_tree({"train": 9, "test": 4})).read_bytes()
    query = f"signature={web.signature}"
    web.server.files["in.zip"] = WebFile(content, query=query, login=web.login)
    return _BUILD, builds.arguments(web.url("in.zip", f"?{query}"), output, *more), {}


def _read(case: Case, web: _Web) -> _Call:
    options = {"data": web.dataset(trainings.data()), "cache_dir": str(case.folder / "cache")}
    return "campaign.readers", [json.dumps(options | {"verify": case.pick("size", "sha256")})], {}


def _look(case: Case, web: _Web) -> _Call:
    url = web.dataset(undisturbed(kills.build_job, 5).folder / "output")
    words = ["diff", url, url] if case.happens(0.2) else [case.pick("verify", "audit"), url]
    return "tfrecord_io.__main__", words, {}


def _train(case: Case, web: _Web) -> _Call:
    words = [f"--data={web.dataset(trainings.data())}", f"--cache_dir={case.folder / 'cache'}"]
    return "train.run", [*words, f"--workdir={case.folder / 'run'}", *_TRAINING], {}


def _measure(case: Case, web: _Web) -> _Call:
    model = f"--model={undisturbed(trainings.training_job).folder / 'run'}"
    url, output = web.dataset(trainings.data()), f"--output={case.folder / 'measured'}"
    if case.happens(0.2):
        return "train.predict", [model, f"--input={url}", output], {}
    words = [model, f"--data={url}", output, "--include_seen", "--bootstrap_samples=0"]
    return "train.evaluate", words, {}


def _download(case: Case, web: _Web) -> _Call:
    web.secrets += [*kaggle_stand_in.SECRETS, "signature0"]
    web.server = server = _kaggle()
    words = ["--source=kaggle", f"--kaggle_dataset={kaggle_stand_in.DATASET}", kills.IN_MEMORY]
    words += [f"--download_dir={case.folder / 'downloads'}", f"--output={case.folder / 'output'}"]
    variables = {"KAGGLE_API_TOKEN": kaggle_stand_in.TOKEN, "PATH": os.environ["PATH"]}
    variables = server.environment(case.folder, **variables)
    return _BUILD, [*words, "--image_size=8", "--num_shards=3"], variables


@functools.cache
def _kaggle() -> kaggle_stand_in.StandIn:
    files = scan_tree({"train": 8, "test": 4})
    # So that the download is of many parts.
    files["notes.bin"] = random.Random(0).randbytes(3 << 20)
    archive = write_zip(home() / "archive.zip", files).read_bytes()
    return kills.servers.enter_context(kaggle_stand_in.StandIn(archive))


def _store(case: Case, web: _Web) -> _Call:
    job = kills.store_job(case, "s3")
    web.secrets.append(s3_server.SECRET_KEY)
    web.uploaded = job.found
    return _BUILD, job.words, job.variables


_BUILD = "pipelines.build_tfrecords"
_COMMANDS: dict[Callable[[Case, _Web], _Call], int] = {
    _build: 4, _read: 4, _look: 3, _train: 1, _measure: 2, _download: 2, _store: 1,
}  # fmt: skip


def try_command(case: Case) -> str:
    """Runs one command and looks through all that it said and left."""
    mask, shared = case.pick(0o022, 0o022, 0, 0o077), case.happens(0.3)
    places = [case.folder / name for name in ("cache", "downloads", "scratch")]
    for place in places if shared else ():
        place.mkdir()
        place.chmod(0o775)
    (make,) = case.rng.choices(list(_COMMANDS), list(_COMMANDS.values()))
    with running_web() as server:
        web = _Web(case, server)
        command, words, variables = make(case, web)
        if case.happens(0.3):
            fault = case.pick(*_FAULTS)
            web.server.faults += [""] * case.rng.randrange(12) + [fault] * case.pick(1, 3, 99)
        if case.happens(0.1):
            words = [*words, case.pick("--nonsense", "--split=nope", "--image_size=x", words[0])]
        variables = {"no_proxy": "127.0.0.1", **variables}
        run = Run(words, functools.partial(_with_mask, mask), variables, command)
        code, text = run.end(case.rng, 2) if case.happens(0.25) else run.wait()
        web.server.faults.clear()
    name = make.__name__.strip("_")
    case.what = f"{name} {' '.join(words)}, umask {mask:03o}, exit code {code}{case.what}"
    case.require_message(text, code)
    uploaded = ((name, body.decode("latin-1")) for name, body in web.uploaded().items())
    for where, content in [("the terminal", text), *_written(case.folder), *uploaded]:
        found = [secret for secret in web.secrets if secret in content]
        case.require(not found, f"{found} is in {where}: {content[:500]}")
    for place in places if shared else ():
        case.require(place.stat().st_mode & 0o777 == 0o775, f"{place} has lost its mode")
    private = [*case.folder.glob("private/secret.txt.*"), case.folder / "output" / ".build"]
    private += [*places, *(case.folder / "cache").rglob("*")] if not shared else []
    private += (case.folder / "cache").glob("*/*")
    opened = [path for path in private if path.exists() and path.stat().st_mode & 0o077]
    case.require(not opened, f"others can read {', '.join(map(str, opened))}")
    return f"{name}: {'killed' if code < 0 or code > 100 else code}"


@contextlib.contextmanager
def _with_mask(mask: int) -> Iterator[None]:
    os.umask(mask)
    remote.SILENT_SECONDS, remote.RETRY_SECONDS = 2, 1
    yield


def _written(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields each file of a folder with its text, but the secret and what was an input."""
    for path in folder.rglob("*"):
        text = str(path.relative_to(folder))
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            text += f"{table.schema.metadata} {table.to_pylist()}"
        elif path.is_file() and path.name != "secret.txt":
            text += path.read_bytes().decode("latin-1")
        yield str(path), text
