"""Valid trees of images, as strange as they may be, and how each kind of archive holds one."""

import dataclasses
import gzip
import io
import os
import random
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from image_files import png_of_rows

#: Names that a person somewhere gives to a file or a folder.
ODD_NAMES = (
    "eye", "Scan 1", " leading", "trailing ", "two  spaces", "CON", "nul", "x" * 180,
    "日本語", "العربية", "עברית", "हिन्दी", "ไทย", "한국어", "Ελληνικά", "русский",
    "e\u0301te\u0301", "😀", "\U0001f469\u200d\u2695\ufe0f",
    "a'b", 'a"b', "a`b", "a$b", "$(id)", "a&b", "a;b", "a|b", "<b>", "a#b", "100%", "%20",
    "a*b", "a?b", "[a]", "{a}", "~", "~a", "-a", "--help", "=1+1", "+1", "@a", "a,b", "a:b", "a=b",
    "a\\b", "a\nb", "a\tb", "a\x1b[31mb", "a\x7fb", "\u202eabc", "\ufeffbom", "a\u00a0b",
    "a\u2028b", "a.", "a..b", "...", "%2e%2e", "#variant-1", "trained", "tests", "Å", "İ", "ß", "ﬁ",
)  # fmt: skip
_SPLIT_NAMES = {
    "train": ("train", "Train", "TRAINING"),
    "val": ("val", "valid", "Validation", "dev"),
    "test": ("test", "TEST", "testing"),
}
_SUFFIXES = (".png", ".PNG", ".jpeg", ".jpg")
KINDS = ("zip", "deflated", "zip64", "streamed", "tar", "gnu", "pax", "tar.gz", "folder")


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a tree holds under one name.

    Attributes:
        name: with `/` between folders; surrogates stand for bytes that are no UTF-8.
        content: of a file.
        kind: file, folder, link, hard_link or pipe.
        target: of a link.
        fate: what must become of it if nothing is damaged: example, copy, reject or ignored. None
            of a folder, which is not counted.
    """

    name: str
    content: bytes = b""
    kind: str = "file"
    target: str = ""
    fate: str | None = "example"


def picture(number: int) -> bytes:
    """Returns a PNG of 2x2 grey pixels, another one for each number below 2**32."""
    pixels = number.to_bytes(4, "big")
    return png_of_rows(2, 2, (pixels[:2], pixels[2:]))


def make_tree(rng: random.Random, kind: str) -> list[Entry]:
    """Returns the entries of a tree that every tool can pack as `kind`, in no special order."""
    prefix = "".join(f"{_folder_name(rng)}/" for _ in range(rng.choice((0, 0, 1, 2))))
    labels = _different(rng, 2 + rng.randrange(3))
    if rng.random() < 0.2:
        labels = ["CNV", "DME", "DRUSEN", "NORMAL"]
    splits = [rng.choice(_SPLIT_NAMES[name]) for name in rng.sample(tuple(_SPLIT_NAMES), 2)]
    has_splits = rng.random() < 0.7
    files: dict[str, bytes] = {}
    for split in splits if has_splits else [""]:
        for label in labels:
            # A folder within a class that is named like another class is refused.
            deeper = [_folder_name(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
            deeper = [name for name in deeper if name not in labels]
            for name in _different(rng, 1 + rng.randrange(4), rng.choice(_SUFFIXES)):
                path = "/".join(filter(None, (split, label, *deeper, name)))
                files[path] = picture(rng.getrandbits(32))
    # The first file of each class lies in it, so that without splits it is known what the class is.
    for label in labels if not has_splits else ():
        files[f"{label}/1.png"] = picture(rng.getrandbits(32))
    entries = [Entry(prefix + path, content) for path, content in files.items()]
    entries += _beside(rng, kind, prefix, sorted(files), has_splits)
    # In the other layout a second tree would be two classes more.
    if has_splits and rng.random() < 0.4:
        entries += _twin(rng, prefix, files)
    rng.shuffle(entries)
    # A link of a tar names something before it.
    entries.sort(key=lambda entry: entry.kind == "hard_link")
    taken: set[str] = set()
    return [e for e in entries if not (e.name in taken or taken.add(e.name))]


def _beside(
    rng: random.Random, kind: str, prefix: str, paths: list[str], has_splits: bool
) -> Iterator[Entry]:
    """Yields what lies among the images and is none."""
    where = rng.choice(paths).rpartition("/")[0]
    inside = f"{prefix}{where}/"
    if rng.random() < 0.4:
        for path in rng.sample(paths, min(3, len(paths))):
            folder, _, name = path.rpartition("/")
            yield Entry(f"{prefix}__MACOSX/{folder}/._{name}", b"\0\5\x16\7", fate="ignored")
    for name in (".DS_Store", "Thumbs.db", ".hidden.png", ".cache/1.png"):
        if rng.random() < 0.2:
            yield Entry(inside + name, b"\0\0\0\1Bud1", fate="ignored")
    if rng.random() < 0.3:
        yield Entry(f"{prefix}readme.txt", b"Hello", fate="ignored")
    if has_splits and rng.random() < 0.2:
        yield Entry(f"{prefix}overview.png", picture(1), fate="reject")
    if rng.random() < 0.3:
        yield Entry(f"{inside}empty folder", kind="folder", fate=None)
    if rng.random() < 0.3:
        # In a folder a link to a file is followed.
        fate = "example" if kind == "folder" else "reject"
        target = os.path.relpath(prefix + rng.choice(paths), inside)
        yield Entry(f"{inside}link.png", kind="link", target=target, fate=fate)
    if rng.random() < 0.1:
        yield Entry(f"{inside}dangling.png", kind="link", target="nowhere.png", fate="reject")
    if kind == "folder" and rng.random() < 0.1:
        yield Entry(f"{inside}loop", kind="link", target="..", fate="reject")
    if kind in ("tar", "gnu", "pax", "tar.gz") and rng.random() < 0.2:
        target = prefix + rng.choice(paths)
        yield Entry(f"{inside}hard.png", kind="hard_link", target=target, fate="reject")
    if not kind.startswith(("zip", "deflated", "streamed")):
        if rng.random() < 0.1:
            yield Entry(f"{inside}pipe.png", kind="pipe", fate="reject")
        if rng.random() < 0.2:
            # PAX holds such a name, too, but not as these bytes.
            name = os.fsdecode(b"\xe9t\xe9\xff.png")
            yield Entry(inside + name, picture(2), fate="reject")


def _twin(rng: random.Random, prefix: str, files: dict[str, bytes]) -> Iterator[Entry]:
    """Yields the tree once more in a longer folder, perhaps not all of it, perhaps changed."""
    kept = rng.sample(sorted(files), rng.randrange((len(files) + 1) // 2, len(files)) or 1)
    for number, path in enumerate(kept):
        is_other = number == 0 and rng.random() < 0.3
        content = picture(rng.getrandbits(32)) if is_other else files[path]
        fate = "copy" if content == files[path] else "reject"
        yield Entry(f"{prefix}second tree of the same/{path}", content, fate=fate)


def _folder_name(rng: random.Random) -> str:
    return _different(rng, 1)[0]


def _different(rng: random.Random, number: int, suffix: str = "") -> list[str]:
    # At the beginning of a path these are a drive, a root, or hidden, and no example's.
    usable = [n for n in ODD_NAMES if not n.startswith((".", "\\")) and n[1:2] != ":"]
    names = [name for name in usable if suffix or len(name) < 100]
    return [name + suffix for name in rng.sample(names, number)]


def pack(rng: random.Random, kind: str, entries: list[Entry], path: Path) -> Path:
    """Writes entries as an archive of a kind, or as a folder; returns its path."""
    if kind == "folder":
        return _write_folder(entries, path)
    is_zip = kind in ("zip", "deflated", "zip64", "streamed")
    path = path.with_suffix(".zip" if is_zip else ".tar.gz" if kind == "tar.gz" else ".tar")
    path.write_bytes((_zip if is_zip else _tar)(rng, kind, entries))
    return path


class _Pipe(io.BytesIO):
    """A file that can only be written forwards, for which a zip puts sizes behind the content."""

    def tell(self) -> int:
        raise OSError


def _zip(rng: random.Random, kind: str, entries: list[Entry]) -> bytes:
    file = _Pipe() if kind == "streamed" else io.BytesIO()
    # Of zip64 everything is too large for the plain records.
    is_large = kind == "zip64"
    limits = {"ZIP64_LIMIT": 1 if is_large else zipfile.ZIP64_LIMIT}
    limits["ZIP_FILECOUNT_LIMIT"] = 0 if is_large else zipfile.ZIP_FILECOUNT_LIMIT
    method = zipfile.ZIP_STORED if kind in ("zip", "zip64") else zipfile.ZIP_DEFLATED
    with mock.patch.multiple(zipfile, **limits), zipfile.ZipFile(file, "w") as archive:
        for entry in entries:
            is_folder = entry.kind == "folder"
            info = zipfile.ZipInfo(entry.name + "/" * is_folder, (2017, 7, 14, 2, 40, 0))
            mode = stat.S_IFLNK if entry.kind == "link" else stat.S_IFREG
            info.external_attr = (mode | 0o644) << 16
            info.compress_type = method
            content = entry.target.encode() if entry.kind == "link" else entry.content
            with archive.open(info, "w", force_zip64=kind == "zip64") as member:
                member.write(content)
        if rng.random() < 0.1:
            archive.comment = rng.choice((b"a comment", b"x" * 300))
    return file.getvalue()


_TAR_TYPES = {
    "file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE,
    "hard_link": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE,
}  # fmt: skip


def _tar(rng: random.Random, kind: str, entries: list[Entry]) -> bytes:
    file, drawn = io.BytesIO(), rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    form = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}.get(kind, drawn)
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.type, info.size = _TAR_TYPES[entry.kind], len(entry.content)
            info.linkname = entry.target
            archive.addfile(info, io.BytesIO(entry.content))
    data = file.getvalue()
    if kind != "tar.gz":
        return data
    cut = rng.randrange(len(data)) if rng.random() < 0.3 else 0
    return gzip.compress(data[:cut], 6, mtime=0) * bool(cut) + gzip.compress(data[cut:], 6, mtime=0)


def _write_folder(entries: list[Entry], folder: Path) -> Path:
    for entry in entries:
        path = folder / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind == "file":
            path.write_bytes(entry.content)
        elif entry.kind == "folder":
            path.mkdir(exist_ok=True)
        elif entry.kind == "link":
            path.symlink_to(entry.target)
        else:
            os.mkfifo(path)
    return folder
