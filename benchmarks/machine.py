"""What the processes of a benchmark and everybody else take of the machine, read from /proc (Linux)."""

import os
import time
from pathlib import Path

import attrs
import trio

DISTURBED = 0.10
"""Share of the machine that others may use while something is measured."""
IDLE = 0.05
"""Cores that a process which has nothing to do may use."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def _fields(stat: Path) -> list[str]:
    """The fields of a stat file from the third on: the second may hold spaces and brackets."""
    return stat.read_text().rpartition(")")[2].split()


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int(_fields(entry / "stat")[1])
        except (OSError, IndexError):  # it has ended
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds of processes, those of the children that they have waited for included."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, _fields(_PROC / str(pid) / "stat")[11:15]))
        except (OSError, ValueError):
            continue
    return ticks / _TICKS


def _machine_seconds() -> tuple[float, float]:
    """CPU seconds of the machine since it started: busy ones, and all."""
    first = (_PROC / "stat").read_text().partition("\n")[0]
    user, nice, system, idle, waiting, *rest = map(int, first.split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy / _TICKS, (busy + idle + waiting) / _TICKS


@attrs.frozen
class Use:
    """What was used over a stretch of time."""

    wall: float
    cpu: dict[int, float]
    """CPU seconds of each process tree that was watched."""
    others: float
    """Share of the machine that neither those trees nor this process used."""

    def cores(self, pid: int) -> float:
        """How many cores a tree kept busy."""
        return self.cpu[pid] / self.wall


class Meter:
    """Measures from its making until ``stop``."""

    def __init__(self, *pids: int) -> None:
        self._trees = {pid: tree(pid) for pid in pids}
        self._begun = self._read()

    def stop(self) -> Use:
        """What was used since the meter was made."""
        (wall, own, busy, total), cpu = self._read()
        (old_wall, old_own, old_busy, old_total), old_cpu = self._begun
        used = {pid: cpu[pid] - old_cpu[pid] for pid in cpu}
        theirs = busy - old_busy - (own - old_own) - sum(used.values())
        return Use(wall - old_wall, used, max(0.0, theirs) / max(total - old_total, 1 / _TICKS))

    def _read(self) -> tuple[tuple[float, float, float, float], dict[int, float]]:
        cpu = {pid: cpu_seconds(pids) for pid, pids in self._trees.items()}
        return (time.perf_counter(), time.process_time(), *_machine_seconds()), cpu


async def quiet(*pids: int, limit: float = 30.0) -> None:
    """Wait until the trees and everybody else are idle, ``limit`` seconds at most."""
    with trio.move_on_after(limit):
        while True:
            meter = Meter(*pids)
            await trio.sleep(0.5)
            use = meter.stop()
            if use.others <= DISTURBED and all(use.cores(pid) <= IDLE for pid in pids):
                return


def thread_seconds(pid: int, device: str) -> dict[str, float]:
    """CPU seconds of a motet server by role: "main", "device" and "others".

    Args:
        pid: the server.
        device: the device thread's name as the kernel shows it. Threads that MLX starts from it
            inherit the name, so the oldest one with it is meant.
    """
    main, named = 0.0, list[tuple[int, int, float]]()
    for task in (_PROC / str(pid) / "task").iterdir():
        try:
            fields, name = _fields(task / "stat"), (task / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        if task.name == str(pid):
            main = seconds
        elif name == device:
            named.append((int(fields[19]), int(task.name), seconds))
    on_device = min(named)[2] if named else 0.0
    # By subtraction, so that threads which have ended are counted as well.
    return {"main": main, "device": on_device, "others": cpu_seconds([pid]) - main - on_device}
