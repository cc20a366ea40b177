"""Ways in which an archive or a folder is damaged on its way."""

import gzip
import io
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

Way = Callable[[random.Random, bytes], bytes]

_MARKS = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"ustar")
_NUMBERS = (0, 1, 2, 0x7F, 0xFF, 0x100, 0x7FFF, 0xFFFE, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
_NAME_PARTS = (b"\0", b"/", b"//", b"../", b"./", b"\xff", b"\\", b"C:", b".", b"\x1b", b"PK\5\6")


def _run(name: str, way: Way) -> Way:
    """Returns a way that changes a run of bytes, wherever it is."""

    def change(rng: random.Random, data: bytes) -> bytes:
        start = rng.choice((0, *(rng.randrange(len(data)) for _ in range(9))))
        end = start + rng.choice((1, 4, 16, 46, 512, 1024, 4096))
        return data[:start] + way(rng, data[start:end]) + data[end:]

    change.__name__ = name
    return change


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data)) if rng.random() < 0.5 else -rng.randrange(1, 100)]


def _near_mark(rng: random.Random, data: bytes, reach: int = 64) -> int:
    """Returns a place within the records of the archive, where there are some."""
    mark = rng.choice(_MARKS)
    places, place = [], data.find(mark)
    while place >= 0 and len(places) < 500:
        places.append(place)
        place = data.find(mark, place + 1)
    if not places:
        return rng.randrange(len(data))
    start = rng.choice(places) - (257 if mark == b"ustar" else 0)
    return min(max(start, 0) + rng.randrange(reach), len(data) - 1)


def _set_number(rng: random.Random, data: bytes) -> bytes:
    """Writes a number that is seldom expected into a record of the archive."""
    place, width = _near_mark(rng, data), rng.choice((2, 4, 4, 8))
    found = int.from_bytes(data[place : place + width], "little")
    value = rng.choice((*_NUMBERS, found + 1, max(found - 1, 0), found * 2, len(data)))
    new = (value % (1 << (8 * width))).to_bytes(width, "little")
    return data[:place] + new + data[place + width :]


def _change_name(rng: random.Random, data: bytes) -> bytes:
    place, part = _near_mark(rng, data, 120), rng.choice(_NAME_PARTS)
    return data[:place] + part + data[place + len(part) :]


def _join_with_itself(rng: random.Random, data: bytes) -> bytes:
    return data + data


def _pad(rng: random.Random, data: bytes) -> bytes:
    return data + bytes(rng.choice((1, 511, 512, 10_240)))


_ANY: tuple[Way, ...] = (
    _truncate,
    _run("flip", lambda rng, run: bytes([run[0] ^ 1 << rng.randrange(8)]) + run[1:]),
    _run("set", lambda rng, run: rng.randbytes(len(run[:30])) + run[30:]),
    _run("zeros", lambda rng, run: bytes(len(run))),  # a lost block of a disk
    _run("cut out", lambda rng, run: b""),
    _run("insert", lambda rng, run: rng.randbytes(rng.choice((1, 22, 512))) + run),
    _run("repeat", lambda rng, run: run + run),
    _run("swap", lambda rng, run: run[len(run) // 2 :] + run[: len(run) // 2]),
)
_ARCHIVE = (*_ANY, *[_set_number] * 3, _change_name, _join_with_itself, _pad)


def change_index(data: bytes, change: Callable[[list[zipfile.ZipInfo]], object]) -> bytes:
    """Returns a zip after a function has changed the list of the members in its index."""
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive:
        change(archive.filelist)
        archive.comment = archive.comment  # so that closing writes the index
    return file.getvalue()


def _change_directory(rng: random.Random, data: bytes) -> bytes:
    """Shuffles, repeats or drops entries of a zip's directory, or swaps the places of two."""
    what = rng.choice(("order", "order", "repeat", "drop", "offsets"))

    def change(entries: list[zipfile.ZipInfo]) -> None:
        if what == "order":
            rng.shuffle(entries)
        elif what == "repeat":
            entries.append(rng.choice(entries))
        elif what == "drop":
            entries.pop(rng.randrange(len(entries)))
        else:
            one, other = rng.choices(entries, k=2)
            one.header_offset, other.header_offset = other.header_offset, one.header_offset

    try:
        return change_index(data, change)
    except Exception:  # it is damaged already, and zipfile refuses it in one of many ways
        return rng.choice(_ANY)(rng, data)


def _change_tar_header(rng: random.Random, data: bytes) -> bytes:
    """Changes a field of a tar's header and makes its checksum right again."""
    places = range(0, len(data), 512)
    blocks = [place for place in places if data[place + 257 : place + 262] == b"ustar"]
    if not blocks:
        return rng.choice(_ANY)(rng, data)
    start = rng.choice(blocks)
    header = bytearray(data[start : start + 512])
    field, width = rng.choice(((124, 12), (124, 12), (156, 1), (0, 100), (157, 100), (345, 100)))
    if field == 124:
        size = rng.choice((0, 1, 511, 512, 513, 2**20, 2**33 - 1, rng.randrange(10_000)))
        in_base_256 = rng.choice((b"\x80", b"\xff")) + rng.randbytes(11)  # negative, too
        header[124:136] = in_base_256 if rng.random() < 0.2 else b"%011o\0" % size
    elif field == 156:
        header[156] = rng.choice(b"\x000123456789gxKLSMVDNA\xff")
    else:
        place, part = field + rng.randrange(min(width, 20)), rng.choice(_NAME_PARTS)
        header[place : place + len(part)] = part
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return data[:start] + bytes(header[:512]) + data[start + 512 :]


def damage(rng: random.Random, path: Path) -> str:
    """Damages an archive or a folder once or several times; returns what was done."""
    if path.is_dir():
        return _damage_folder(rng, path)
    data = path.read_bytes()
    # Of a packed stream hardly any damage but its checksum is seen; so mostly the tar in it.
    is_inner = path.suffix == ".gz" and rng.random() < 0.7
    if is_inner:
        data = gzip.decompress(data)
    is_tar = is_inner or path.suffix == ".tar"
    more = [_change_tar_header] * 8 if is_tar else [_change_directory] * 3
    done = rng.choices((*_ARCHIVE, *more), k=rng.choice((1, 1, 1, 2, 4)))
    for way in done:
        data = way(rng, data) or b"\0"
    path.write_bytes(gzip.compress(data, 1, mtime=0) if is_inner else data)
    return ", ".join(way.__name__.strip("_") for way in done)


_IN_FOLDER: dict[str, Callable[[Path, bytes], object]] = {
    "away": lambda path, content: None,
    "empty": lambda path, content: path.touch(),
    "cut": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "folder": lambda path, content: path.mkdir(),
    "loop": lambda path, content: path.symlink_to(path.name),
    "pipe": lambda path, content: os.mkfifo(path),
    "device": lambda path, content: path.symlink_to("/dev/zero"),
    "sparse": lambda path, content: (path.touch(), os.truncate(path, 300 * 2**20)),
}


def _damage_folder(rng: random.Random, folder: Path) -> str:
    """Damages a folder as a disk, a sync program or a colleague does; returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    done = rng.choices(list(_IN_FOLDER), k=min(len(files), rng.choice((1, 2, 3))))
    for way, path in zip(done, rng.sample(files, len(done)), strict=True):
        content = path.read_bytes()
        path.unlink()
        _IN_FOLDER[way](path, content)
    return ", ".join(done)
