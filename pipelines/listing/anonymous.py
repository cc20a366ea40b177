"""Replaces the names of an input by codes, before anything is planned.

A code is the HMAC-SHA256 of a name with a secret (RFC 2104). Whoever guesses a path or a patient's
number could confirm the guess against a plain hash of it; against a code, only with the secret.
The secret stays on the launcher. Each image keeps its real name in the plan, by which the workers
read it; the plan is removed when the dataset is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import errors
from pipelines.listing.refs import OTHER, REF_SCHEMA, Listing, RejectedFile, iterate_refs
from tfrecord_io.format import schema
from tfrecord_io.format.codes import code_of
from tfrecord_io.format.groups import COPY_OF
from tfrecord_io.format.manifest import ManifestError
from tfrecord_io.stores.files import atomic_write, sync_folder
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal.address import is_remote

#: The digest of the secret is in the manifest, so a short secret could be found by trying.
MIN_SECRET_BYTES = 32

#: Entries of a build's identity that are names of the input, or plain hashes of them.
_NAMING_ENTRIES = ("labels", "tree", "group_regex", "label_regex")

#: The private table: the code of each file and patient, and what it stands for.
_NAMES = ("key", "path", "source_path", "patient", "source_patient", "detail")
NAMES_SCHEMA = pa.schema([(name, pa.large_string()) for name in _NAMES])


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Keeps the names of an input out of a dataset and out of messages, if there is a secret.

    Attributes:
        file: the file of the secret, beside which the private files of a build appear.
        key: its content; empty without a secret.
    """

    file: Path = Path()
    key: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def read(cls, file: Path | None, *, output: str, source: str | None) -> Privacy:
        """Reads the secret of `--anonymize`, every byte of which counts.

        Raises:
            errors.UserError: if the file cannot be read, does not look like random bytes, or is
                inside the output or the input, with which it could be passed on.
        """
        if file is None:
            return cls()
        advice = "make one with: openssl rand -hex 32 > secret.txt"
        for flag, folder in (("--output", output), ("--input", source or "")):
            is_local = folder and not is_remote(folder)
            if is_local and file.resolve().is_relative_to(Path(folder).resolve()):
                raise errors.UserError(
                    f"--anonymize {file} is inside {flag}, with which it could be passed on; move "
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
        return cls(file.resolve(), key)

    def hide(self, listing: Listing) -> None:
        """Replaces all names of a listing by codes, and puts what they stand for into its `names`.

        The references keep the real names in a column `hidden`. They are sorted by their codes,
        because their order would show that of the names.
        """
        if not self.key:
            return
        refs = listing.refs
        columns: dict[str, Any] = {name: refs[name] for name in REF_SCHEMA.names}
        columns["root"] = pa.array([""] * refs.num_rows, refs["root"].type)
        for kind, name in (("image", "path"), ("patient", "patient")):
            columns[name] = self._codes(kind, refs[name]).cast(pa.large_string())
        # These say which images without a patient belong together.
        coded = ("study", "series", COPY_OF) if refs["patient"].null_count else ()
        # Nothing is known of the other columns, so names may be in them.
        for name in ("site", *coded):
            if (other := f"{OTHER}{name}") in refs.column_names:
                columns[other] = self._codes(name, refs[other]) if name in coded else refs[other]
        rejects = [
            {"path": self._code("reject", reject.source_path), **dataclasses.asdict(reject)}
            for reject in listing.rejects
        ]
        listing.rejects = sorted(RejectedFile(row["path"], row["reason"], "") for row in rejects)
        for name in _NAMING_ENTRIES:
            if listing.identity[name]:
                listing.identity[name] = self._code(name, json.dumps(listing.identity[name]))
        listing.secret_code = self._code("secret", "")
        source = json.dumps(listing.source, sort_keys=True)
        listing.source = {"kind": listing.source["kind"], "code": self._code("source", source)}
        listing.naming_notes = []
        listing.layout = [(role, names.partition(":")[0]) for role, names in listing.layout]
        names = [ref.source_path for ref in iterate_refs(refs)]
        hidden = pa.table({**columns, "hidden": pa.array(names, pa.large_string())})
        paths = [ref.image_path for ref in iterate_refs(hidden)]
        images = {
            "key": map(schema.image_key, paths),
            "path": paths,
            "source_path": names,
            "patient": hidden["patient"],
            "source_patient": refs["patient"],
            "detail": pa.nulls(refs.num_rows),
        }
        rows = pa.Table.from_pylist(rejects, NAMES_SCHEMA)
        listing.names = pa.concat_tables([pa.table(images, NAMES_SCHEMA), rows])
        listing.refs = hidden.sort_by([("path", "ascending"), ("frame", "ascending")])

    def _code(self, kind: str, text: str) -> str:
        return code_of(self.key, kind, text)

    def _codes(self, kind: str, names: pa.Array | pa.ChunkedArray) -> pa.Array:
        codes = (
            name if name is None else self._code(kind, str(name)) for name in names.to_pylist()
        )
        return pa.array(codes, pa.string())

    def write_names(self, names: pa.Table, fingerprint: str) -> Path:
        """Writes the private table beside the secret, and returns its path.

        Raises:
            errors.BuildError: if it cannot be written.
        """
        with self._create_beside(f"{fingerprint[:12]}.parquet") as (path, file):
            pq.write_table(names, file)
        sync_folder(path.parent)
        return path

    @contextlib.contextmanager
    def private_errors(self, *shown: type[Exception]) -> Iterator[None]:
        """Writes the message of an error beside the secret, because it may name the input.

        Args:
            shown: errors whose messages name no file of the input; they are raised unchanged.

        Raises:
            errors.UserError, errors.BuildError: with the path of that file, instead of the error.
        """
        try:
            yield
        except Exception as error:
            if not self.key or isinstance(error, shown):
                raise
            is_told = isinstance(error, errors.ToldError | OSError)
            with self._create_beside("error.txt") as (path, file):
                file.write(f"{error if is_told else traceback.format_exc()}\n".encode())
            is_usage = isinstance(error, errors.UserError | ManifestError)
            kind = errors.UserError if is_usage else errors.BuildError
            message = f"the reason may name files of the input, so it was written to {path}"
            raise kind(message) from None

    @contextlib.contextmanager
    def build_folder(self, storage: Folder, *, job_goes_on: bool = False) -> Iterator[None]:
        """Keeps from others what the build folder and messages say of the input.

        An error removes what the folder holds of it. So does Ctrl-C, unless the job goes on without
        the launcher: then the workers need the plan. Errors of a build are raised unchanged, see
        `private_errors`: what has been prepared knows files by their codes.
        """
        if not self.key:
            yield
            return
        if not storage.remote:
            with errors.clear_write_errors(storage.root):
                Path(storage.path(BUILD_DIR)).chmod(0o700)
        try:
            with self.private_errors(errors.UserError, errors.BuildError):
                yield
        except BaseException as error:
            if not (job_goes_on and isinstance(error, KeyboardInterrupt)):
                # The rows of the plan and an unpacked archive, which the next run makes again.
                storage.clean_build_dir("plan.arrow", ".tar", ".tmp")
            raise

    @contextlib.contextmanager
    def _create_beside(self, ending: str) -> Iterator[tuple[Path, BinaryIO]]:
        """Opens a file beside the secret for writing, which its owner alone may read."""
        path = self.file.with_name(f"{self.file.name}.{ending}")
        with errors.clear_write_errors(str(path)), atomic_write(path, is_private=True) as file:
            yield path, file


def _is_random(key: bytes) -> bool:
    """Returns whether a file's content can be random bytes in hexadecimal or base64."""
    text = key.strip()
    is_hexadecimal = re.fullmatch(rb"[0-9a-fA-F]*", text)
    length = len(text.rstrip(b"=")) // 2 if is_hexadecimal else len(text.rstrip(b"=")) * 3 // 4
    # Of so many random characters, fewer than eight different ones do not happen.
    is_varied = len(set(text)) >= 8 and re.fullmatch(rb"[\w+/-]*={0,2}", text)
    return bool(is_varied) and length >= MIN_SECRET_BYTES
