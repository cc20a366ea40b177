"""Ways in which an archive, a folder or an image file is damaged on its way."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Mutation = Callable[[random.Random, bytearray], bytes | bytearray]
#: What may stand in a JSON file instead of a value.
VALUES: tuple[Any, ...] = (
    None, 0, 1, -1, 2**31, 2**63, 2**70, 10**13, 0.5, 1e308, float("nan"), "", "x",
    "../../etc/passwd", "/tmp/campaign-outside", "\0", "a\nb", "\ud800", [], {}, [[]], True, [1, 2],
    {"a": 1}, ["x"], "9" * 400, "train", "1", "os.system", "uint8", "label_names",
    "train-00000-of-00003.tfrecord",
)  # fmt: skip

_MARKS = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"ustar")
_NUMBERS = (0, 1, 2, 0x7F, 0xFF, 0x100, 0x7FFF, 0xFFFE, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)
_NAME_PARTS = (b"\0", b"/", b"//", b"../", b"./", b"\xff", b"\\", b"C:", b".", b"\x1b", b"PK\5\6")


def flip_bits(rng: random.Random, data: bytearray) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def set_bytes(rng: random.Random, data: bytearray) -> bytearray:
    start = rng.randrange(len(data))
    for place in range(start, min(start + rng.choice((1, 2, 4, 30)), len(data))):
        data[place] = rng.randrange(256)
    return data


def set_number(rng: random.Random, data: bytearray) -> bytearray:
    """Writes a number that is seldom expected into a record of the archive."""
    place = _near_mark(rng, data)
    width = rng.choice((2, 4, 4, 8))
    found = int.from_bytes(data[place : place + width], "little")
    value = rng.choice((*_NUMBERS, found + 1, max(found - 1, 0), found * 2, len(data)))
    data[place : place + width] = (value % (1 << (8 * width))).to_bytes(width, "little")
    return data


def change_name(rng: random.Random, data: bytearray) -> bytearray:
    place = _near_mark(rng, data, 120)
    part = rng.choice(_NAME_PARTS)
    data[place : place + len(part)] = part
    return data


def truncate(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data)) if rng.random() < 0.5 else -rng.randrange(1, 100)]


def zero_run(rng: random.Random, data: bytearray) -> bytearray:
    """A lost block of a disk, or what a download has not fetched yet."""
    start, length = rng.randrange(len(data)), rng.choice((16, 512, 4096))
    end = min(start + length, len(data))
    data[start:end] = bytes(end - start)
    return data


def cut_out(rng: random.Random, data: bytearray) -> bytearray:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 4, 46, 512, 1024))]
    return data


def insert(rng: random.Random, data: bytearray) -> bytearray:
    place = rng.choice((0, len(data), rng.randrange(len(data))))
    data[place:place] = rng.randbytes(rng.choice((1, 22, 512)))
    return data


def repeat_run(rng: random.Random, data: bytearray) -> bytearray:
    start, length = rng.randrange(len(data)), rng.choice((46, 512, 1024, 2048))
    data[start:start] = data[start : start + length]
    return data


def swap_runs(rng: random.Random, data: bytearray) -> bytearray:
    length = rng.choice((46, 512))
    a, b = sorted(rng.randrange(max(len(data) - length, 1)) for _ in range(2))
    if b - a >= length:
        data[a : a + length], data[b : b + length] = data[b : b + length], data[a : a + length]
    return data


def join_with_itself(rng: random.Random, data: bytearray) -> bytearray:
    return data + data


def pad(rng: random.Random, data: bytearray) -> bytearray:
    return data + bytes(rng.choice((1, 511, 512, 10_240)))


#: For files of any kind.
ANY = (flip_bits, set_bytes, truncate, zero_run, cut_out, insert, repeat_run, swap_runs)
ARCHIVE = (*ANY, set_number, set_number, set_number, change_name, join_with_itself, pad)


def damage(
    rng: random.Random,
    data: bytes,
    times: Sequence[int] = (0, 0, 1, 1, 2),
    ways: Sequence[Mutation] = ANY,
) -> tuple[bytes, list[str]]:
    """Damages data; returns it and what was done.

    Args:
        rng: decides everything.
        data: not empty.
        times: how often, one of these.
        ways: to choose from.
    """
    done = []
    for _ in range(rng.choice(times)):
        way = rng.choice(ways)
        data = bytes(way(rng, bytearray(data))) or b"\0"
        done.append(way.__name__)
    return data, done


def damage_file(rng: random.Random, path: Path) -> str:
    """Damages a file once, and says how."""
    data, done = damage(rng, path.read_bytes() or b"\0", (1,))
    path.write_bytes(data)
    return done[0]


def alter_json(rng: random.Random, path: Path, values: Sequence[Any] = VALUES) -> str:
    """Damages a JSON file, or changes, renames or removes values in it; says what was done."""
    if rng.random() < 0.15:
        return damage_file(rng, path)
    content, done = json.loads(path.read_bytes()), []
    for _ in range(rng.choice((1, 1, 2))):
        holders = [content]
        for holder in holders:
            inner = holder.values() if isinstance(holder, dict) else holder
            holders += [each for each in inner if isinstance(each, dict | list) and each]
        holder = rng.choice(holders)
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        what, value = rng.choice(("change", "change", "remove", "rename")), rng.choice(values)
        if what == "change":
            holder[key] = value
        elif what == "remove" or not isinstance(holder, dict):
            del holder[key]
        else:
            holder[str(value)] = holder.pop(key)
        done.append(f"{what} {key} {value!a}"[:90])
    path.write_text(json.dumps(content))
    return ", ".join(done)


def zip_entries(data: bytes) -> tuple[int, int, list[bytes]] | None:
    """Returns where a plain zip's directory begins and ends, and its entries; None of others."""
    end = data.rfind(b"PK\5\6")
    if end < 0 or len(data) < end + 22:
        return None
    length, start = struct.unpack_from("<II", data, end + 12)
    entries, place = [], start
    while data[place : place + 4] == b"PK\1\2" and place + 46 <= start + length:
        size = 46 + sum(struct.unpack_from("<HHH", data, place + 28))
        entries.append(data[place : place + size])
        place += size
    return (start, start + length, entries) if entries and place == start + length else None


def change_directory(rng: random.Random, data: bytearray) -> bytes:
    """Shuffles, repeats or drops entries of a zip's directory, and counts them right, or not."""
    found = zip_entries(bytes(data))
    if found is None:
        return flip_bits(rng, data)
    start, end, entries = found
    what = rng.choice(("order", "order", "repeat", "drop", "swap offsets"))
    if what == "order":
        rng.shuffle(entries)
    elif what == "repeat":
        entries.append(rng.choice(entries))
    elif what == "drop":
        entries.pop(rng.randrange(len(entries)))
    else:
        a, b = rng.randrange(len(entries)), rng.randrange(len(entries))
        first, second = entries[a], entries[b]
        entries[a] = first[:42] + second[42:46] + first[46:]
        entries[b] = second[:42] + first[42:46] + second[46:]
    directory, tail = b"".join(entries), bytearray(data[end:])
    place = tail.rfind(b"PK\5\6")
    struct.pack_into("<I", tail, place + 12, len(directory))
    if rng.random() < 0.7:
        struct.pack_into("<HH", tail, place + 8, len(entries), len(entries))
    return bytes(data[:start]) + directory + bytes(tail)


def change_tar_header(rng: random.Random, data: bytearray) -> bytearray:
    """Changes a field of a tar's header and makes its checksum right again."""
    blocks = [
        place for place in range(0, len(data), 512) if data[place + 257 : place + 262] == b"ustar"
    ]
    if not blocks:
        return flip_bits(rng, data)
    start = rng.choice(blocks)
    header = data[start : start + 512]
    field, width = rng.choice(((124, 12), (124, 12), (156, 1), (0, 100), (157, 100), (345, 100)))
    if field == 124:
        size = rng.choice((0, 1, 511, 512, 513, 2**20, 2**33 - 1, rng.randrange(10_000)))
        header[124:136] = b"%011o\0" % size
        if rng.random() < 0.2:  # base 256, which also holds what is negative
            header[124:136] = rng.choice((b"\x80", b"\xff")) + rng.randbytes(11)
    elif field == 156:
        header[156] = rng.choice(b"\x000123456789gxKLSMVDNA\xff")
    else:
        part = rng.choice(_NAME_PARTS)
        place = field + rng.randrange(min(width, 20))
        header[place : place + len(part)] = part
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    data[start : start + 512] = header[:512]
    return data


def mutate_archive(rng: random.Random, path: Path) -> list[str]:
    """Damages an archive once or several times; returns what was done."""
    data, ways = path.read_bytes(), (*ARCHIVE, *(change_directory,) * 3)
    # Of a packed stream hardly any damage but its checksum is seen; so mostly the tar in it.
    is_inner = path.suffix == ".gz" and rng.random() < 0.7
    if is_inner or path.suffix == ".tar":
        ways = (*ARCHIVE, *(change_tar_header,) * 8)
    if is_inner:
        data = gzip.decompress(data)
    data, done = damage(rng, data, (1, 1, 1, 2, 4), ways)
    path.write_bytes(gzip.compress(data, 1, mtime=0) if is_inner else data)
    return done


def mutate_folder(rng: random.Random, folder: Path) -> list[str]:
    """Damages a folder as a disk, a sync program or a colleague does; returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    done = []
    for path in rng.sample(files, min(len(files), rng.choice((1, 2, 3)))):
        way = rng.choice(("empty", "cut", "folder", "loop", "pipe", "device", "away", "sparse"))
        done.append(way)
        content = path.read_bytes()
        path.unlink()
        if way == "empty":
            path.write_bytes(b"")
        elif way == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif way == "folder":
            path.mkdir()
        elif way == "loop":
            path.symlink_to(path.name)
        elif way == "pipe":
            os.mkfifo(path)
        elif way == "device":
            path.symlink_to("/dev/zero")
        elif way == "sparse":
            path.touch()
            os.truncate(path, 300 * 2**20)
    return done


def _near_mark(rng: random.Random, data: bytearray, reach: int = 64) -> int:
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
