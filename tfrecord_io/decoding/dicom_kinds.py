"""Names the kinds of DICOM objects that are not pictures of a patient; no library has such a list.

>>> ignored_kind("1.2.840.10008.5.1.4.1.1.88.22")
'structured_report'
>>> ignored_kind("1.2.840.10008.5.1.4.1.1.2", ("ORIGINAL", "PRIMARY", "LOCALIZER"))
'localizer_image'
>>> ignored_kind("1.2.840.10008.5.1.4.1.1.77.1.5.4")
''
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_STORAGE = r"1\.2\.840\.10008\.5\.1\.4\.1\.1\."

# By the end of the SOP class (PS3.4). Segmentations have pixels, but these are masks of other
# pictures.
_KINDS = {
    re.compile(rf"{_STORAGE}(?:{ends})"): kind
    for ends, kind in {
        r"88\.59": "key_object_selection",
        r"88\.\d+(\.\d+)*": "structured_report",
        r"11\.\d+": "presentation_state",
        r"104\.\d+": "encapsulated_document",
        r"481\.3": "structure_set",
        r"481\.([4-9]|1\d|2\d)|34\.\d+": "treatment_plan_or_record",
        r"9\.\d+(\.\d+)*": "waveform",
        r"66\.4|66\.7": "segmentation",
        r"66\.[12356]": "registration_or_surface",
        r"66|4\.2": "raw_data",
        r"67": "value_mapping",
        r"78\.\d|79\.1|80\.1|77\.1\.5\.3": "eye_measurement",
        r"90\.1|91\.1": "annotation",
        r"68\.\d|131": "surface_or_color_palette",
    }.items()
}
# The second is Siemens' own, in which spectra and protocols are beside the pictures of a study.
_OTHERS = {"1.2.840.10008.1.3.10": "media_directory", "1.3.12.2.1107.5.9.1": "raw_data"}

# Values of ImageType of pictures that only accompany others: of slides, and of CT (PS3.3, C.8.12.4
# and C.8.2.1).
_COMPANIONS = ("LABEL", "OVERVIEW", "THUMBNAIL", "LOCALIZER")


def ignored_kind(sop_class: str, image_type: Iterable[str] = ()) -> str:
    """Returns what a DICOM object is, such as `structured_report`; empty for a picture to use."""
    kinds = (kind for pattern, kind in _KINDS.items() if pattern.fullmatch(sop_class))
    companions = (f"{name.lower()}_image" for name in _COMPANIONS if name in image_type)
    return _OTHERS.get(sop_class) or next(kinds, "") or next(companions, "")
