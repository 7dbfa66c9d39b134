"""What a server's process sets for itself."""

import ctypes
import subprocess
import sys

import mlx.core as mx
import pytest

GLIBC_CPU = (
    sys.platform == "linux"
    and mx.default_device() == mx.Device(mx.cpu)
    and hasattr(ctypes.CDLL(None), "mallopt")
)
FAULTS = """
import resource
import mlx.core as mx
{first}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    mx.eval([mx.arange(i << 18, dtype=mx.float32) + 1 for i in range(1, 30)])
for _ in range(3):
    work()
before = faults()
for _ in range(5):
    work()
print(faults() - before)
"""
TUNED = "from motet.tuning import tune_process; tune_process()"


def faults(first: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS.format(first=first)], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(not GLIBC_CPU, reason="nothing to set here")
def test_freed_memory_is_used_again_without_asking_the_kernel() -> None:
    """Arrays of 1 to 29 MB, freed and made again five times: 500,000 pages."""
    assert faults(TUNED) < 1000 < 100_000 < faults("")
