"""The device's table of snapshots: caches of one row that nobody writes to. On the device thread alone."""

import time
from collections.abc import Callable

import attrs
import structlog

from motet.channels.device import Export, Exported, Restore, Restored, Snapshot
from motet.channels.manifest import Manifest, Plane
from motet.channels.namespace import Namespace
from motet.engine.model import Model
from motet.engine.planes import Exporting, Importing, NotPortable, put_together, take_apart
from motet.engine.state import begin_evaluation, fresh_copy, nbytes, trimmable

log = structlog.get_logger()


@attrs.frozen
class Stored:
    """A snapshot's arrays."""

    caches: list[object]
    length: int


@attrs.frozen
class _Export:
    handle: int
    manifest: Manifest
    bytes_out: Exporting


@attrs.frozen
class _Import:
    manifest: Manifest
    namespace: Namespace
    bytes_in: Importing


class Snapshots:
    """Snapshots by handle, and those on their way out and in."""

    def __init__(
        self, model: Model, namespace: Namespace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._namespace = namespace
        self._clock = clock
        self._stored: dict[int, Stored] = {}
        self._next_handle = 1
        self._export: _Export | None = None
        self._imports: dict[int, _Import] = {}

    def store(self, caches: list[object], length: int) -> Snapshot:
        """Keep caches, which from now on are written to by nobody."""
        begin_evaluation(caches)
        handle = self._next_handle
        self._next_handle += 1
        self._stored[handle] = Stored(caches, length)
        return Snapshot(handle, length, nbytes(caches), trimmable(caches), self._namespace)

    def copy(self, handle: int, length: int) -> list[object]:
        """The first ``length`` tokens of a snapshot, as caches that may be written to."""
        stored = self._stored[handle]
        return fresh_copy(stored.caches, stored.length - length)

    def forget(self, handles: tuple[int, ...]) -> None:
        """Drop snapshots."""
        for handle in handles:
            del self._stored[handle]
            if self._export is not None and self._export.handle == handle:
                self._export = None

    # --- out and in ---

    def export(self, command: Export, *, busy: bool) -> Exported:
        """The next bytes of a snapshot. What cannot be had is told as gone."""
        started = self._clock()
        manifest, data = None, b""
        try:
            export = self._exporting(command)
            if export is not None:
                manifest, data = export.manifest, export.bytes_out.next(command.most)
                if export.bytes_out.position == manifest.nbytes:
                    self._export = None
        except Exception as error:
            self._export = manifest = None
            log.error("snapshot not exported", error=f"{type(error).__name__}: {error}")
        return Exported(command.handle, command.start, manifest, data, self._clock() - started, busy)

    def _exporting(self, command: Export) -> _Export | None:
        export, stored = self._export, self._stored.get(command.handle)
        if command.start == 0 and stored is not None:
            export = self._export = _begin_export(command.handle, stored)
        if export is None or (export.handle, export.bytes_out.position) != (command.handle, command.start):
            return None
        return export

    def restore(self, command: Restore) -> Restored:
        """Take bytes in; the snapshot when they are all there."""
        try:
            if command.manifest is not None:
                planes = [(plane.dtype, plane.shape) for plane in command.manifest.planes]
                coming = _Import(command.manifest, command.namespace, Importing(planes))
                self._imports[command.number] = coming
            coming = self._imports[command.number]
            coming.bytes_in.add(command.data)
            if not coming.bytes_in.whole:
                return Restored(command.number)
            del self._imports[command.number]
            return Restored(command.number, self._built(coming))
        except Exception as error:
            self.discard(command.number)
            return Restored(command.number, error=f"{type(error).__name__}: {error}")

    def _built(self, coming: _Import) -> Snapshot:
        if coming.namespace != self._namespace:
            raise NotPortable("of another namespace")
        manifest = coming.manifest
        caches = put_together(manifest.structure, coming.bytes_in.arrays, self._model.caches())
        if trimmable(caches) != manifest.trimmable:
            raise NotPortable("not what its header says")
        return self.store(caches, manifest.length)

    def discard(self, number: int) -> None:
        """Drop a restoration that is not done."""
        self._imports.pop(number, None)


def _begin_export(handle: int, stored: Stored) -> _Export:
    apart = take_apart(stored.caches)
    planes = tuple(Plane(dtype, shape) for dtype, shape in apart.planes)
    manifest = Manifest(stored.length, trimmable(stored.caches), 0, apart.structure, planes)
    return _Export(handle, manifest, Exporting(apart.arrays))
