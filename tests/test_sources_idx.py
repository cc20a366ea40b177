"""IDX files, whole and damaged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import FILES, IMAGES, LABELS, gzipped, idx

from pipelines.sources.idx import read_idx


@pytest.mark.parametrize("values", [IMAGES, LABELS, IMAGES[:0]], ids=["images", "labels", "none"])
@pytest.mark.parametrize("pack", [gzipped, bytes], ids=["gzipped", "unpacked"])
def test_an_idx_file_is_read_as_it_was_written(tmp_path, values, pack):
    path = tmp_path / "some-idx3-ubyte.gz"
    path.write_bytes(pack(idx(values)))

    read = read_idx(path)

    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, values)


WHOLE = idx(IMAGES)
DAMAGED = {
    "an empty file": (b"", "an empty file"),
    "an empty gzip file": (gzipped(b""), "an empty file"),
    "a page": (b"<html></html>", "expected an IDX file"),
    "signed bytes": (gzipped(idx(IMAGES, type_code=9)), r"type uint8 \(0x08\), got int8 \(0x09\)"),
    "floats": (gzipped(idx(IMAGES, type_code=0x0D)), r"got float32 \(0x0d\)"),
    "an unknown type": (gzipped(idx(IMAGES, type_code=0x42)), r"got an unknown type \(0x42\)"),
    "no dimensions": (gzipped(bytes([0, 0, 8, 0])), "got 0"),
    "four dimensions": (gzipped(idx(IMAGES[None])), "got 4"),
    "half a header": (gzipped(WHOLE[:10]), "expected 3 dimensions of 4 bytes each, got 6"),
    "one value too few": (gzipped(WHOLE[:-1]), r"expected 60 bytes .*\[5, 4, 3\], got 59"),
    "one value too many": (gzipped(WHOLE + b"\x00"), "expected the file to end after 60 bytes"),
    "an absurd shape": (gzipped(bytes([0, 0, 8, 2]) + b"\xff" * 8), "the header is damaged"),
    "a gzip cut in its end": (gzipped(WHOLE)[:-4], "expected a whole gzip file"),
    "a gzip cut in its middle": (gzipped(WHOLE)[:30], "expected a whole gzip file"),
    "a gzip of another CRC": (gzipped(WHOLE)[:-8] + bytes(8), "CRC"),
    "a gzip of nonsense": (gzipped(WHOLE)[:10] + b"\xff" * 30, "expected a whole gzip file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_with_what_was_expected_and_what_came(tmp_path, case):
    content, message = DAMAGED[case]
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=message) as error:
        read_idx(path)
    assert str(error.value).startswith(f"{path}: expected")


@settings(max_examples=150, deadline=None)
@given(
    offset=st.integers(0, len(FILES["train-images-idx3-ubyte.gz"]) - 1), mask=st.integers(1, 255)
)
def test_no_changed_byte_changes_an_image_unseen(tmp_path_factory, offset, mask):
    path = tmp_path_factory.mktemp("changed") / "train-images-idx3-ubyte.gz"
    content = bytearray(FILES[path.name])
    content[offset] ^= mask
    path.write_bytes(content)
    try:
        read = read_idx(path)
    except ValueError:
        return
    np.testing.assert_array_equal(read, IMAGES)  # Bytes of gzip's header (time, system) are free.
