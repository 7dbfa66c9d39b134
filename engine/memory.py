"""How much memory the device has for rows and the prompt cache when nobody says; what is kept for reuse."""

import ctypes
import os
import sys

import attrs
import mlx.core as mx

_LEAST_HEADROOM = 1 << 30
_HEADROOM_SHARE = 0.10
_CUDA_SHARE = 0.95  # what MLX takes at most there
_LEAST_SHARE = 0.05

# glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_IN_HEAP = 32 << 20  # the most that it takes
_MOST_KEPT = (1 << 31) - 1  # likewise


@attrs.frozen
class AutomaticBudget:
    """``budget`` = ``usable`` - weights - ``headroom``, but at least a twentieth of ``usable``."""

    usable: int
    headroom: int
    budget: int
    floored: bool
    """Whether that least is what it is: the weights leave less."""


def automatic_budget(weight_bytes: int, usable: int | None = None) -> AutomaticBudget:
    """The budget beside weights of so many bytes.

    The headroom is a tenth, at least 1 GiB: for the process, for what MLX keeps for reuse, for the machine.
    """
    usable = usable_bytes() if usable is None else usable
    headroom = max(_LEAST_HEADROOM, int(_HEADROOM_SHARE * usable))
    left, least = usable - weight_bytes - headroom, int(_LEAST_SHARE * usable)
    return AutomaticBudget(usable, headroom, max(left, least), floored=left < least)


def limit_reuse(headroom: int) -> None:
    """Let MLX keep no more freed buffers for reuse than half the headroom, and drop those that it has.

    On a GPU its own limit is nearly all the memory: what loading, the self-test and chunks of many lengths
    leave behind would crowd out everybody else, and in the end ourselves.
    """
    before = mx.set_cache_limit(headroom // 2)
    if before < headroom // 2:
        mx.set_cache_limit(before)
    mx.clear_cache()


def keep_freed_memory() -> None:
    """Have Linux' allocator keep what is freed for reuse, up to half the headroom, as MLX does on a GPU.

    On a CPU MLX leaves that to the allocator, and glibc's gives every larger array back to the kernel: the
    next one's pages are zeroed anew when they are first written, and on a virtual machine may have to come
    from its host (docs/decisions/0007-allocator.md). In one arena, for each thread would keep what only it
    can use.

    It is the whole process's matter, so a server's to ask for and no library's. To be called before other
    threads begin. Without effect but on a CPU with glibc.
    """
    if sys.platform != "linux" or mx.default_device() != mx.Device(mx.cpu):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_ARENA_MAX, 1)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
    libc.mallopt(_TRIM_THRESHOLD, min(automatic_budget(0).headroom // 2, _MOST_KEPT))


def usable_bytes() -> int:
    """What the device reports usable: on a CPU the machine's memory."""
    if mx.default_device() == mx.Device(mx.cpu):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    info = mx.device_info()
    if "max_recommended_working_set_size" in info:  # Metal
        return int(info["max_recommended_working_set_size"])
    return int(_CUDA_SHARE * int(info["total_memory"]))
