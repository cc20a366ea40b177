"""Reading ahead of the decoder, in order."""

import threading

from pipelines import errors
from pipelines.listing.refs import ImageRef
from pipelines.sources.reader import Reader, read_in_order

REF = ImageRef(
    root="", path="", split="train", label="A", patient=None, offset=0, stored_size=1, size=1,
    version=0,
)  # fmt: skip


class CountingReader(Reader):
    """Answers with the ref's offset; remembers how many reads ran at the same time."""

    def __init__(self, num_parallel_reads: int):
        self.num_parallel_reads = num_parallel_reads
        self.together = threading.Barrier(num_parallel_reads, timeout=20)
        self.started = 0

    def read(self, ref: ImageRef) -> bytes:
        self.started += 1
        self.together.wait()
        if ref.offset == 5:
            raise errors.BuildError("the fifth")
        return b"%d" % ref.offset


def refs(count: int, stored_size: int = 1) -> list[ImageRef]:
    return [REF._replace(offset=i, stored_size=stored_size) for i in range(count)]


def test_reads_run_at_once_and_come_back_in_order():
    reader = CountingReader(4)
    found = []
    for ref, read in read_in_order(reader, refs(40), reader.read):
        try:
            found.append(read())
        except errors.BuildError:
            found.append(b"failed")
        assert ref.offset == len(found) - 1
    assert found == [b"failed" if i == 5 else b"%d" % i for i in range(40)]


def test_large_files_are_not_read_far_ahead():
    reader = CountingReader(1)
    reader.num_parallel_reads = 8  # A barrier of one holds nobody up.
    reads = read_in_order(reader, refs(20, stored_size=40_000_000), reader.read)
    next(reads)[1]()
    assert reader.started <= 2
    reads.close()


def test_a_local_reader_is_asked_by_the_caller_itself():
    class Local(Reader):
        def read(self, ref: ImageRef) -> bytes:
            return threading.current_thread().name.encode()

    names = [read() for _, read in read_in_order(Local(), refs(3), Local().read)]
    assert names == [threading.current_thread().name.encode()] * 3


def test_a_reader_of_a_disk_announces_each_image_before_it_is_read():
    happened = []

    class Disk(Reader):
        def announce(self, ref: ImageRef) -> None:
            happened.append(("announced", ref.offset))

        def read(self, ref: ImageRef) -> bytes:
            happened.append(("read", ref.offset))
            return b"%d" % ref.offset

    found = [read() for _, read in read_in_order(Disk(), refs(30), Disk().read)]
    assert found == [b"%d" % i for i in range(30)]
    places = {event: place for place, event in enumerate(happened)}
    assert len(places) == len(happened) == 60
    early = [places["read", i] - places["announced", i] for i in range(20)]
    assert min(early) >= 8
    assert max(early) < 30  # and not all at once
