"""Runs the command line of motet with thread names that the kernel shows (Linux).

CPython before 3.14 keeps a thread's name to itself, and /proc shows every thread under the program's:

    python benchmarks/named_threads.py serve --port 8080
"""

import ctypes
import sys
import threading

from motet.__main__ import main

_PR_SET_NAME = 15
_run = threading.Thread.run


def _run_named(self: threading.Thread) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, self.name.encode()[:15], 0, 0, 0)
    _run(self)


if __name__ == "__main__":
    threading.Thread.run = _run_named  # type: ignore[method-assign]
    sys.exit(main())
