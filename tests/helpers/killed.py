"""Kills a process of its own between two changes of a disk."""

import os
import signal
from collections.abc import Callable

_CHANGES = ("replace", "unlink", "rmdir", "fsync")


def is_killed(do: Callable[[], object], number: int) -> bool:
    """Calls a function in a fork of this process, which is killed after so many changes.

    Returns False if the function ended before.
    """
    child = os.fork()
    if not child:
        left = iter(range(number))

        def counted(change: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return change(*arguments, **named)

            return call

        code = 1
        try:
            for name in _CHANGES:
                setattr(os, name, counted(getattr(os, name)))
            do()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert os.WEXITSTATUS(status) == 0, "the function failed"
        return False
    return True
