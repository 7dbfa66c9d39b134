"""What a process that does nothing but run an engine sets for itself: `motet serve`, and the benchmarks."""

import sys

from motet.engine.memory import keep_freed_memory

_SWITCH = 0.0005  # seconds


def tune_process() -> None:
    """Make the process fit for an engine. To be called first, before other threads begin.

    The device thread and Trio share the interpreter lock: Python's default of 5 ms would let either keep the
    other waiting for longer than a fast model's step takes.
    """
    sys.setswitchinterval(_SWITCH)
    keep_freed_memory()
