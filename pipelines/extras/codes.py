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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.images import Images, Ledger
from pipelines.listing.refs import OTHER, REF_SCHEMA, RejectedFile, iterate_refs
from pipelines.options import BuildOptions
from pipelines.report.summary import say
from tfrecord_io.format import schema
from tfrecord_io.format.groups import COPY_OF
from tfrecord_io.stores.files import atomic_write, sync_folder
from tfrecord_io.terminal.address import is_inside
from tfrecord_io.terminal.flags import flag

#: The digest of the secret is in the manifest, so a short secret could be found by trying.
MIN_SECRET_BYTES = 32

#: Entries of a build's identity that are names of the input, or plain hashes of them.
_NAMING_ENTRIES = ("labels", "tree", "patient_regex", "label_regex", "rename_classes")

#: The private table: the code of each file and patient, and what it stands for.
_NAMES = ("key", "path", "source_path", "patient", "source_patient", "detail")
NAMES_SCHEMA = pa.schema([(name, pa.large_string()) for name in _NAMES])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whether codes stand for names."""

    heading: ClassVar = "output"

    anonymize: Path | None = flag(
        None,
        "put no name or path of the input into any output: images and patients get codes, made "
        "with the secret in FILE, which stays outside --output (docs/privacy.md)",
        metavar="FILE",
    )


@dataclasses.dataclass(frozen=True)
class Secret:
    """The secret of `--anonymize`.

    Attributes:
        file: its file, beside which the private table of a build appears.
        key: its content.
        keeps_names: whether the private table is written.
    """

    file: Path
    key: bytes = dataclasses.field(repr=False)
    keeps_names: bool = True

    def code(self, kind: str, text: str) -> str:
        """Returns the code of a name, which has another one in each kind, such as image."""
        message = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.digest(self.key, message, "sha256").hex()[:32]

    def codes(self, kind: str, names: Iterable[Any]) -> pa.Array:
        """Returns the codes of names; null for null."""
        codes = (name if name is None else self.code(kind, str(name)) for name in names)
        return pa.array(codes, pa.string())


def read_secret(options: BuildOptions, *, keeps_names: bool) -> Secret | None:
    """Reads the secret of `--anonymize`, every byte of which counts; None without a file.

    For `keeps_names` see `Secret`.

    Raises:
        errors.UserError: if the file cannot be read, does not look like random bytes, or is inside
            the output or the input, with which it could be passed on.
    """
    file = options.of(Options).anonymize
    if file is None:
        return None
    advice = "make one with: openssl rand -hex 32 > secret.txt"
    for name, folder in (
        ("--output", options.output.output),
        ("--input", options.source.input or ""),
    ):
        if folder and is_inside(str(file), folder):
            raise errors.UserError(
                f"--anonymize {file} is inside {name}, with which it could be passed on; move "
                "the secret to a private folder elsewhere"
            )
    try:
        key = file.read_bytes()
    except OSError as error:
        raise errors.UserError(
            f"--anonymize {file} could not be read: {error.strerror}; {advice}"
        ) from None
    if not _is_random(key):
        raise errors.UserError(
            f"--anonymize {file} holds {len(key)} bytes that are not a secret; expected at "
            f"least {MIN_SECRET_BYTES} random bytes in hexadecimal or base64; {advice}"
        )
    return Secret(file.resolve(), key, keeps_names=keeps_names)


def coded(images: Images, secret: Secret | None) -> Images:
    """Returns the images with codes for all names, if there is a secret.

    The table keeps the real names in a column `name`, by which files are read. It is sorted by the
    codes, because its order would show that of the names. The private table, which tells what the
    codes stand for, is written beside the secret.

    Raises:
        errors.BuildError: if the private table cannot be written.
    """
    if secret is None:
        return images.then(identity={**images.identity, "anonymize": None})
    table, ledger = images.table, images.ledger
    columns: dict[str, Any] = {name: table[name] for name in REF_SCHEMA.names}
    columns["root"] = pa.array([""] * table.num_rows, table["root"].type)
    for kind, name in (("image", "path"), ("patient", "patient")):
        columns[name] = secret.codes(kind, table[name].to_pylist()).cast(pa.large_string())
    # These say which images without a patient belong together.
    in_codes = ("study", "series", COPY_OF) if table["patient"].null_count else ()
    # Nothing is known of the other columns, so names may be in them.
    for name in ("site", *in_codes):
        if (other := f"{OTHER}{name}") in table.column_names:
            texts = table[other]
            columns[other] = secret.codes(name, texts.to_pylist()) if name in in_codes else texts
    names = [ref.source_path for ref in iterate_refs(table)]
    codes = pa.table({**columns, "name": pa.array(names, pa.large_string())})
    rejects = [secret.code("reject", reject.source_path) for reject in ledger.rejects]
    entries = {name: value for name in _NAMING_ENTRIES if (value := images.identity.get(name))}
    result = dataclasses.replace(
        images,
        table=codes.sort_by([("path", "ascending"), ("frame", "ascending")]),
        ledger=dataclasses.replace(
            ledger,
            rejects=tuple(
                sorted(
                    RejectedFile(code, reject.reason, "")
                    for code, reject in zip(rejects, ledger.rejects, strict=True)
                )
            ),
            notes=tuple(note for note in ledger.notes if not note.is_private),
        ),
        layout=tuple((role, names.partition(":")[0]) for role, names in images.layout),
        source={
            "kind": images.source["kind"],
            "code": secret.code("source", json.dumps(images.source, sort_keys=True)),
        },
        identity={
            **images.identity,
            **{name: secret.code(name, json.dumps(value)) for name, value in entries.items()},
            "anonymize": secret.code("secret", ""),
        },
    )
    if secret.keeps_names:
        _write_names(secret, result.digest, table["patient"], codes, rejects, ledger)
    return result


def _write_names(
    secret: Secret,
    digest: str,
    patients: pa.ChunkedArray,
    codes: pa.Table,
    rejects: list[str],
    ledger: Ledger,
) -> None:
    """Writes the private table beside the secret, where its owner alone may read it.

    `patients` and the rows of `codes` are those of the images, `rejects` the codes of rejects.
    """
    paths = [ref.image_path for ref in iterate_refs(codes)]
    of_images = {
        "key": map(schema.image_key, paths),
        "path": paths,
        "source_path": codes["name"],
        "patient": codes["patient"],
        "source_patient": patients,
        "detail": pa.nulls(codes.num_rows),
    }
    of_rejects = [
        {"path": code, **dataclasses.asdict(reject)}
        for code, reject in zip(rejects, ledger.rejects, strict=True)
    ]
    rows = pa.Table.from_pylist(of_rejects, NAMES_SCHEMA)
    path = secret.file.with_name(f"{secret.file.name}.{digest[:12]}.parquet")
    with errors.clear_write_errors(str(path)), atomic_write(path, is_private=True) as file:
        pq.write_table(pa.concat_tables([pa.table(of_images, NAMES_SCHEMA), rows]), file)
    sync_folder(path.parent)
    say(f"the names behind the codes are in {path}: keep it as private as the secret")


def _is_random(key: bytes) -> bool:
    """Returns whether a file's content can be random bytes in hexadecimal or base64."""
    text = key.strip()
    is_hexadecimal = re.fullmatch(rb"[0-9a-fA-F]*", text)
    length = len(text.rstrip(b"=")) // 2 if is_hexadecimal else len(text.rstrip(b"=")) * 3 // 4
    # Of so many random characters, fewer than eight different ones do not happen.
    is_varied = len(set(text)) >= 8 and re.fullmatch(rb"[\w+/-]*={0,2}", text)
    return bool(is_varied) and length >= MIN_SECRET_BYTES
