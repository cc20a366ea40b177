"""What well-known tools find in an archive or a folder, against what a build says of it.

`zipfile`, `tarfile` and, where it is installed, libarchive (the library below bsdtar). Whatever one
of them lists and reads must be in the build's ledger, unless the build refuses the whole archive.
"""

import collections
import contextlib
import ctypes
import ctypes.util
import dataclasses
import functools
import itertools
import os
import stat
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import xxhash

_MOST_BYTES = 1 << 24
_MOST_FILES = 1000
_IMAGE_SUFFIXES = ("jpeg", "jpg", "png", "tif", "tiff", "bmp", "gif", "webp", "jp2", "pgm", "ppm")

#: A regular file that a tool lists: its name as the tool decodes it, and the digest of its content,
#: None if the tool cannot read it.
Found = tuple[str, str | None]


@dataclasses.dataclass
class Ledger:
    """What a build says became of every file.

    Attributes:
        examples: digest of the file by its name in the source.
        rejects: (name, reason), the name escaped where it is not printable.
        copies: number of files that are in twice.
        ignored: number of files that are no data, by reason.
        num_files: files seen.
    """

    examples: Mapping[str, str]
    rejects: Sequence[tuple[str, str]]
    copies: int
    ignored: Mapping[str, int]
    num_files: int

    def fates(self) -> collections.Counter[str]:
        """Returns the number of files by what became of them."""
        return collections.Counter(
            example=len(self.examples), reject=len(self.rejects),
            copy=self.copies, ignored=sum(self.ignored.values()),
        )  # fmt: skip


def digest(content: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(content)


def escaped(name: str) -> str:
    """Returns a name as the tables show it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def found_by_tools(path: Path) -> dict[str, list[Found]]:
    """Returns what each tool lists of an archive or a folder; one that refuses it is left out."""
    if path.is_dir():
        return {"the file system": list(_walk(path))}
    tools = {"libarchive": _libarchive} if _archive_library() else {}
    tools |= {"tarfile": _tarfile} if ".tar" in path.suffixes else {"zipfile": _zipfile}
    found = {name: tool(path) for name, tool in tools.items()}
    return {name: files for name, files in found.items() if files is not None}


def _found(name: str, size: int, read: Callable[[], bytes]) -> Found:
    content = None
    if size < _MOST_BYTES:
        with contextlib.suppress(Exception):  # whatever a tool raises, it cannot read it
            content = digest(read())
    return name, content


def _walk(folder: Path) -> Iterator[Found]:
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file():
                    name = path.relative_to(folder).as_posix()
                    yield _found(name, path.stat().st_size, path.read_bytes)


def _zipfile(path: Path) -> list[Found] | None:
    # Whatever it raises, it refuses.
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:
        return [
            _found(info.filename, info.file_size, functools.partial(archive.read, info))
            for info in archive.infolist()
            if (info.file_size or not info.filename.endswith("/"))
            and not stat.S_ISLNK(info.external_attr >> 16)
        ]
    return None


def _tarfile(path: Path) -> list[Found] | None:
    found = []
    with contextlib.suppress(Exception), tarfile.open(path) as archive:
        # Some damage makes it go round in circles.
        for info in itertools.islice(archive, _MOST_FILES):
            if info.isreg():
                read = functools.partial(lambda info: archive.extractfile(info).read(), info)
                found.append(_found(info.name, info.size, read))
    return found


@functools.cache
def _archive_library() -> ctypes.CDLL | None:
    if (name := ctypes.util.find_library("archive")) is None:
        return None
    library = ctypes.CDLL(name)
    library.archive_read_new.restype = ctypes.c_void_p
    library.archive_entry_pathname.restype = ctypes.c_char_p
    library.archive_entry_hardlink.restype = ctypes.c_char_p
    library.archive_read_data.restype = ctypes.c_ssize_t
    return library


def _libarchive(path: Path) -> list[Found] | None:
    lib = _archive_library()
    reader = ctypes.c_void_p(lib.archive_read_new())
    lib.archive_read_support_filter_gzip(reader)
    lib.archive_read_support_format_tar(reader)
    lib.archive_read_support_format_zip_seekable(reader)
    data, entry, found = path.read_bytes(), ctypes.c_void_p(), []
    buffer = ctypes.create_string_buffer(_MOST_BYTES + 1)
    try:
        if lib.archive_read_open_memory(reader, data, ctypes.c_size_t(len(data))):
            return None
        # 0 is a good entry and -20 one with a warning.
        while lib.archive_read_next_header(reader, ctypes.byref(entry)) in (0, -20):
            name = lib.archive_entry_pathname(entry)
            is_link = lib.archive_entry_hardlink(entry) is not None
            if lib.archive_entry_filetype(entry) != stat.S_IFREG or is_link or not name:
                continue
            size = lib.archive_read_data(reader, buffer, len(buffer))
            # It takes names from before the members, which may be damaged, not from the directory.
            # So a folder can look like an empty file, and of what it cannot read it knows little.
            if 0 < size <= _MOST_BYTES:
                found.append((os.fsdecode(name), digest(buffer.raw[:size])))
            if len(found) > _MOST_FILES:
                break
    finally:
        lib.archive_read_free(reader)
    return found


def complaints(
    found: Mapping[str, list[Found]], ledger: Ledger, packed: Iterable[bytes]
) -> Iterator[str]:
    """Yields what the tools found and the ledger does not hold, and what only the ledger holds.

    Args:
        found: see `found_by_tools`.
        ledger: of the build.
        packed: contents of the files before anything was damaged.
    """
    unnamed = ledger.copies + sum(ledger.ignored.values())
    if (total := ledger.fates().total()) != ledger.num_files:
        yield f"{ledger.num_files} files seen, {total} in the ledger"
    # Of an example the digest by its name; None of a reject, which has no content.
    known: dict[str, str | None] = {_same(name): None for name, _ in ledger.rejects}
    examples = [(_same(escaped(name)), content) for name, content in ledger.examples.items()]
    known |= dict(examples)
    contents = collections.defaultdict(set)
    for name, content in itertools.chain.from_iterable(found.values()):
        contents[_same(escaped(name))].add(content)
    seen = {content for some in contents.values() for content in some} | set(map(digest, packed))
    for name, content in known.items():
        if content and found and content not in seen:
            yield f"no tool finds the content of the example {name!r}"
        elif content and not {content, None} & contents.get(name, {content}):
            yield f"{name!r} has the content of another file"
    for tool, files in found.items():
        if len(files) > ledger.num_files:
            yield f"{tool} lists {len(files)} files, the ledger has {ledger.num_files}"
        # libarchive takes the name before a member, not the one in the directory, and where the
        # two differ, the ledger has the file under a name that this tool does not know.
        others = known.keys() - {_same(escaped(name)) for name, _ in files}
        renamed = {known[name] for name in others} - {None}
        missing = [f for f in files if _same(escaped(f[0])) not in known and f[1] not in renamed]
        spare = sum(known[name] is None for name in others)
        if len(missing) > unnamed + spare:
            yield f"{tool} lists {len(missing)} files of no name in the ledger, it counts {unnamed}"
        for name, content in missing if tool != "libarchive" else ():
            if content is None or _may_be_ignored(name) or "other_tree" in ledger.ignored:
                continue
            # Two files may have names that are the same but for the form of an accent.
            if not (ledger.copies and _is_copy(name, content, [*known.items(), *examples])):
                yield f"{tool} reads {name!r}, which is not in the ledger"


def _same(name: str) -> str:
    # libarchive gives names in this form.
    return unicodedata.normalize("NFC", name)


def _may_be_ignored(name: str) -> bool:
    *folders, base = name.split("/")
    return (
        any(part.startswith(".") for part in (*folders, base))
        or "__MACOSX" in folders
        or base.lower() in ("thumbs.db", "desktop.ini")
        or base.lower().rpartition(".")[2] not in _IMAGE_SUFFIXES
    )


def _is_copy(name: str, content: str, known: Sequence[tuple[str, str | None]]) -> bool:
    """Tells whether the first file with the end of this name has this content, or is a reject."""
    tail = "/" + "/".join(_same(escaped(name)).split("/")[-2:])
    return any(f"/{n}".endswith(tail) and found in (content, None) for n, found in known)
