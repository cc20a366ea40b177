"""Tells whether what follows a JPEG only accompanies it: a gain map, a depth map, a short video.

Phones and cameras write such files: MPO (CIPA DC-007, Multi-Picture Format), Ultra HDR and motion
photos (Google's container in XMP; Samsung's trailer). The picture that viewers show is the first.
"""

from __future__ import annotations

import re
from typing import Any

# MPO: the index, and of each picture its flags and type. A large thumbnail is a smaller version.
_NUM_PICTURES, _ENTRIES = 45057, 45058
_THUMBNAIL = "Large Thumbnail"

# The metadata of a JPEG come before its pixels.
_METADATA_BYTES = 256 * 1024
_SEMANTIC = re.compile(rb'Semantic="(\w+)"')
_COMPANIONS = {b"GainMap", b"MotionPhoto", b"Depth", b"DepthMap", b"Confidence", b"Primary"}
_GAIN_MAP = re.compile(rb'hdrgm:Version="')
_VIDEO = re.compile(rb'(?:MotionPhoto|MicroVideo)(?:="1"|>1<)')
_SAMSUNG_VIDEO, _SAMSUNG_END = b"MotionPhoto_Data", b"SEFT"
_VIDEO_BOX = b"ftyp"


def is_primary(image: Any, data: bytes, rest: bytes) -> bool:
    """Returns whether a file says that what follows its first picture depends on that one.

    Args:
        image: the file as Pillow opened it, a JPEG or an MPO.
        data: the file.
        rest: what follows the first picture.
    """
    entries = getattr(image, "mpinfo", None) or {}
    others = entries.get(_ENTRIES, ())[1:]
    if others and all(map(_is_dependent, others)):
        return True
    head = data[:_METADATA_BYTES]
    named = {*_SEMANTIC.findall(head)} - {b"Primary"}
    if named:
        return named <= _COMPANIONS
    has_video = rest[4:8] == _VIDEO_BOX or _SAMSUNG_VIDEO in rest
    if has_video and (_VIDEO.search(head) or rest.endswith(_SAMSUNG_END)):
        return True
    return bool(_GAIN_MAP.search(head)) and entries.get(_NUM_PICTURES, 2) == 2


def _is_dependent(entry: Any) -> bool:
    flags = entry["Attribute"]
    return flags["DependentChildImageFlag"] or flags["MPType"].startswith(_THUMBNAIL)
