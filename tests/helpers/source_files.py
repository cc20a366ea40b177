"""A small tree of files in folders of classes, and what the sources list and read of it."""

from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.archive import open_archive
from pipelines.sources.directory import DirectorySource
from tfrecord_io.decoding.rejects import Reject

TREE = {
    f"{split}/{label}/{label}-{patient}-1.jpeg": f"{split} {label} {patient}".encode() * 9
    for split in ("train", "test")
    for label in ("CNV", "NORMAL")
    for patient in (1, 2, 3)
}
FIRST = "train/CNV/CNV-1-1.jpeg"


def list_archive(path, scratch_dir):
    scratch_dir.mkdir(exist_ok=True)
    source = DirectorySource(path) if path.is_dir() else open_archive(path, scratch_dir)
    return source, list_images(source, ListingOptions())


def read_archive(path, scratch_dir):
    """Returns every file's content, or the reason of its reject, by name."""
    source, listing = list_archive(path, scratch_dir)
    found = {reject.source_path: reject.reason for reject in listing.ledger.rejects}
    with source.open() as reader:
        for ref in iterate_refs(listing.table):
            try:
                found[ref.source_path] = reader.read(ref.member)
            except Reject as reject:
                found[ref.source_path] = reject.reason
    return found
