"""A small tree of files in folders of classes, and what the sources list and read of it."""

from pathlib import Path

from image_files import pack
from s3_server import BUCKET

from pipelines.listing.classes import with_classes
from pipelines.listing.listing import ListingOptions, list_images
from pipelines.listing.refs import iterate_refs
from pipelines.sources.archive import open_archive
from pipelines.sources.directory import DirectorySource, RemoteDirectorySource
from tfrecord_io.decoding.rejects import Reject
from tfrecord_io.stores import remote
from tfrecord_io.terminal.address import Address

TREE = {
    f"{split}/{label}/{label}-{patient}-1.jpeg": f"{split} {label} {patient}".encode() * 9
    for split in ("train", "test")
    for label in ("CNV", "NORMAL")
    for patient in (1, 2, 3)
}
FIRST = "train/CNV/CNV-1-1.jpeg"


def upload(path, url):
    """Writes a file, or those of a folder, to a store."""
    for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
        with remote.create(f"{url}{str(file).removeprefix(str(path))}") as stored:
            stored.write(file.read_bytes())
    return Address(url)


def write_input(folder, kind, files=TREE):
    """Returns the path of an archive, such as `deflated.zip`, or of a `folder`; or its URL."""
    kind, _, place = kind.partition(" on a ")
    path = pack(folder / f"scans.{kind}", files)
    return upload(path, f"s3://{BUCKET}/{folder.name}/{path.name}") if place else path


def list_input(place):
    if not str(place).endswith("folder") and not Path(place).is_dir():
        source = open_archive(place)
    else:
        source = (RemoteDirectorySource if isinstance(place, Address) else DirectorySource)(place)
    return source, with_classes(list_images(source, ListingOptions()), ListingOptions())


def read_input(path):
    """Returns every file's content, or the reason of its reject, by name."""
    source, listing = list_input(path)
    found = {reject.source_path: reject.reason for reject in listing.ledger.rejects}
    with source.open() as reader:
        for ref in iterate_refs(listing.table):
            try:
                found[ref.source_path] = reader.read(ref.member)
            except Reject as reject:
                found[ref.source_path] = reject.reason
    return found
