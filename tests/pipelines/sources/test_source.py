"""Reading ahead of the decoder, in order."""

import functools
import threading

import pytest

from pipelines import errors
from pipelines.sources.source import Member, Reader, read_in_order


class Notes(Reader):
    """Answers with the member's offset; notes what is asked."""

    def __init__(self, num_parallel_reads=1, at_once=1):
        self.num_parallel_reads = num_parallel_reads
        self.together = threading.Barrier(at_once, timeout=20)
        self.happened = []

    def announce(self, member):
        self.happened.append(("announced", member.offset))

    def read(self, member):
        self.happened.append(("read", member.offset))
        self.together.wait()
        if member.offset == 5:
            raise errors.BuildError("the fifth")
        return member.offset


def reads_of(reader, members):
    return read_in_order(
        reader, ((member, functools.partial(reader.read, member)) for member in members)
    )


def test_reads_run_at_once_and_come_back_in_order():
    reader, found = Notes(num_parallel_reads=4, at_once=4), []
    for read in reads_of(reader, [Member("", 1, place, 1) for place in range(40)]):
        try:
            found.append(read())
        except errors.BuildError:
            found.append("failed")
    assert found == [*range(5), "failed", *range(6, 40)]


@pytest.mark.parametrize(("num_parallel_reads", "size", "most"), [(8, 4e7, 2), (1, 1e7, 0)])
def test_large_files_are_not_read_or_announced_far_ahead(num_parallel_reads, size, most):
    reader = Notes(num_parallel_reads)
    reads = reads_of(reader, [Member("", 1, place, int(size)) for place in range(100)])
    next(reads)()
    kind = "read" if num_parallel_reads > 1 else "announced"
    assert len([event for event in reader.happened if event[0] == kind]) <= most
    reads.close()
