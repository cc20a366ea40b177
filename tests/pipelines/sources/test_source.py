"""Reading ahead of the decoder, in order."""

import functools
import threading

from pipelines import errors
from pipelines.sources.source import Member, Reader, read_in_order


class CountingReader(Reader):
    """Answers with the member's offset; remembers how many reads ran at the same time."""

    def __init__(self, num_parallel_reads):
        self.num_parallel_reads = num_parallel_reads
        self.together = threading.Barrier(num_parallel_reads, timeout=20)
        self.started = 0

    def read(self, member):
        self.started += 1
        self.together.wait()
        if member.offset == 5:
            raise errors.BuildError("the fifth")
        return b"%d" % member.offset


def reads_of(reader, count, stored_size=1):
    members = [Member("", 1, i, stored_size) for i in range(count)]
    return read_in_order(
        reader, [(member, functools.partial(reader.read, member)) for member in members]
    )


def test_reads_run_at_once_and_come_back_in_order():
    reader = CountingReader(4)
    found = []
    for read in reads_of(reader, 40):
        try:
            found.append(read())
        except errors.BuildError:
            found.append(b"failed")
    assert found == [b"failed" if i == 5 else b"%d" % i for i in range(40)]


def test_a_local_reader_is_asked_by_the_caller_itself():
    class Local(Reader):
        def read(self, member):
            return threading.current_thread().name.encode()

    names = [read() for read in reads_of(Local(), 3)]
    assert names == [threading.current_thread().name.encode()] * 3


def test_a_reader_of_a_disk_announces_images_far_ahead_in_the_order_of_their_places():
    happened = []

    class Disk(Reader):
        def announce(self, member):
            happened.append(("announced", member.offset))

        def read(self, member):
            happened.append(("read", member.offset))
            return b"%d" % member.offset

    offsets = [number * 7 % 1000 for number in range(1000)]
    # A large file is not announced.
    members = [Member("", 1, offset, 10**8 * (offset == 500)) for offset in offsets]
    reader = Disk()
    reads = ((member, functools.partial(reader.read, member)) for member in members)
    assert [read() for read in read_in_order(reader, reads)] == [b"%d" % i for i in offsets]
    places = {event: place for place, event in enumerate(happened)}
    assert ("announced", 500) not in places
    offsets.remove(500)
    early = [places["read", i] - places["announced", i] for i in offsets]
    assert min(early[32:-256]) >= 200
    assert max(early) <= 600
    told = [offset for kind, offset in happened if kind == "announced"]
    assert told[:32] == sorted(told[:32])


def test_large_files_are_not_read_or_announced_far_ahead():
    reader = CountingReader(1)
    reader.num_parallel_reads = 8  # A barrier of one holds nobody up.
    reads = reads_of(reader, 20, stored_size=40_000_000)
    next(reads)()
    assert reader.started <= 2
    reads.close()
    announced = []

    class Disk(Reader):
        def announce(self, member):
            announced.append(member.offset)

        def read(self, member):
            return b""

    next(reads_of(Disk(), 100, stored_size=10_000_000))()
    assert len(announced) < 20
