"""Replaces the names of an input by codes (`--anonymize`), for whoever passes a dataset on.

A code is half of the HMAC-SHA256 of a name with a secret (RFC 2104). Whoever guesses a path or a
patient's number could confirm the guess against a plain hash of it; against a code, only with the
secret. The secret stays on the launcher. Each image keeps its real name in the plan, by which the
workers read it; the plan is removed when the dataset is complete.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.images import Images
from pipelines.listing.refs import OTHER, REF_SCHEMA, RejectedFile, iterate_refs
from pipelines.report.summary import say
from tfrecord_io.decoding.preprocess import frame_path
from tfrecord_io.format.schema import image_key
from tfrecord_io.stores.files import atomic_write, sync_folder
from tfrecord_io.terminal.address import is_inside
from tfrecord_io.terminal.flags import flag

# The code of nothing is in the manifest, so a secret of fewer bytes could be found by trying.
_SECRET = re.compile(rb"[0-9a-fA-F]{64,}\s*")

#: Entries of a build's identity that are names of the input.
_NAMING_ENTRIES = ("labels", "patient_regex", "label_regex", "rename_classes")

#: The private table: the code of each file and patient, and its name.
_NAMES = ("key", "path", "source_path", "patient", "source_patient", "detail")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whether codes stand for names."""

    anonymize: Path | None = flag(
        None,
        "put no name or path of the input into any output: images and patients get codes, made "
        "with the secret in FILE, which stays outside --output (docs/privacy.md)",
        metavar="FILE",
    )


@dataclasses.dataclass(frozen=True)
class Secret:
    """The secret of `--anonymize`: its file, beside which the names are written, and content."""

    file: Path
    key: bytes = dataclasses.field(repr=False)

    def code(self, kind: str, text: str) -> str:
        """Returns the code of a name, which has another one in each kind, such as image."""
        message = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.digest(self.key, message, "sha256").hex()[:32]

    def codes(self, kind: str, names: Iterable[Any]) -> pa.Array:
        """Returns the codes of names, large_string; null for null."""
        codes = (name if name is None else self.code(kind, str(name)) for name in names)
        return pa.array(codes, pa.large_string())


def read_secret(file: Path, folders: Mapping[str, str]) -> Secret:
    """Reads the secret of `--anonymize`.

    Raises:
        errors.UserError: if the file cannot be read, does not hold 64 hexadecimal digits or more,
            or is inside one of the folders, by their flags, with which it could be passed on.
    """
    for name, folder in folders.items():
        if folder and is_inside(str(file), folder):
            raise errors.UserError(
                f"--anonymize {file} is inside {name}, with which it could be passed on; move "
                "the secret to a private folder elsewhere"
            )
    advice = "make it with: openssl rand -hex 32 > secret.txt"
    try:
        key = file.read_bytes()
    except OSError as error:
        raise errors.UserError(
            f"--anonymize {file} could not be read: {error.strerror}; {advice}"
        ) from None
    if not _SECRET.fullmatch(key):
        raise errors.UserError(
            f"--anonymize {file} holds no secret; expected 64 hexadecimal digits or more; {advice}"
        )
    return Secret(file.resolve(), key)


def coded(images: Images, secret: Secret) -> Images:
    """Returns the images with codes for all names, and without notes.

    The table keeps the real names in a column `name`, by which files are read. It is sorted by the
    codes, because its order would show that of the names.
    """
    table, ledger = images.table, images.ledger
    columns: dict[str, Any] = {name: table[name] for name in REF_SCHEMA.names}
    columns["root"] = pa.array([""] * table.num_rows, table["root"].type)
    for kind, name in (("image", "path"), ("patient", "patient")):
        columns[name] = secret.codes(kind, table[name].to_pylist())
    if (site := f"{OTHER}site") in table.column_names:
        columns[site] = secret.codes("site", table[site].to_pylist())
    # Nothing is known of the other columns, so names may be in them. These say which images without
    # a patient belong together.
    for name in ("study", "series") if table["patient"].null_count else ():
        if (other := f"{OTHER}{name}") in table.column_names:
            columns[other] = secret.codes(name, table[other].to_pylist())
    columns["name"] = pa.array((ref.source_path for ref in iterate_refs(table)), pa.large_string())
    codes = pa.table(columns).sort_by([("path", "ascending"), ("frame", "ascending")])
    rejects = sorted(
        RejectedFile(secret.code("reject", reject.source_path), reject.reason, "")
        for reject in ledger.rejects
    )
    named = {name: value for name in _NAMING_ENTRIES if (value := images.identity.get(name))}
    hidden = {name: secret.code(name, json.dumps(value)) for name, value in named.items()}
    source = json.dumps(images.source, sort_keys=True)
    return dataclasses.replace(
        images,
        table=codes,
        ledger=dataclasses.replace(ledger, rejects=tuple(rejects), notes=()),
        reject_patients={},
        layout=tuple((role, names.partition(":")[0]) for role, names in images.layout),
        source={"kind": images.source["kind"], "code": secret.code("source", source)},
        identity={**images.identity, **hidden, "anonymize": secret.code("secret", "")},
    )


def write_names(images: Images, secret: Secret, digest: str) -> None:
    """Writes what the codes stand for beside the secret, where its owner alone may read it.

    `images` have their real names, and `digest` is that of the images with codes.

    Raises:
        errors.BuildError: if the table cannot be written.
    """
    rows = []
    for ref in iterate_refs(images.table):
        path = frame_path(secret.code("image", ref.path), ref.frame)
        code = ref.patient and secret.code("patient", ref.patient)
        rows.append((image_key(path), path, ref.source_path, code, ref.patient, None))
    for reject in images.ledger.rejects:
        path = secret.code("reject", reject.source_path)
        rows.append((None, path, reject.source_path, None, None, reject.detail))
    columns = [pa.array(column, pa.large_string()) for column in zip(*rows, strict=True)]
    path = secret.file.with_name(f"{secret.file.name}.{digest[:12]}.parquet")
    with errors.clear_write_errors(str(path)), atomic_write(path, is_private=True) as file:
        pq.write_table(pa.table(columns, _NAMES), file)
    sync_folder(path.parent)
    say(f"the names behind the codes are in {path}: keep it as private as the secret")
