"""Files of which only parts are read; see test_stores_remote.py for those on a store."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines.sources.member_checks import Checks


def test_threads_that_open_one_member_compare_it_once():
    checks, done, begun = Checks(), [], threading.Barrier(4)

    def check():
        # Another thread would come in here, if it could.
        threading.Event().wait(0.05)
        done.append(1)

    def open_it(_):
        begun.wait()
        checks.once(7, check)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_it, range(4)))
    assert done == [1]


def test_a_member_that_is_damaged_stays_damaged():
    checks = Checks()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            checks.once(7, lambda: 1 // 0)
