"""Numbers that actors keep for /stats. Each object has one writer; nobody decides by them."""

import attrs


@attrs.define
class AdmissionGauges:
    """Written by the admission queue."""

    pending_rows: int = 0
    pending_background_rows: int = 0
    """Of the pending ones."""
    displaced_rows: int = 0
    """How often a row gave way to an interactive one."""
    live_rows: int = 0
    submitted_rows: int = 0
    kv_projected_bytes: int = 0
    """What the live rows may need at most."""


@attrs.define
class PrefillGauges:
    """Written by the prefill cohort."""

    preparing_rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@attrs.define
class DecodeGauges:
    """Written by the decode stepper."""

    active_rows: int = 0
    tokens: int = 0
    step_faults: int = 0
    recovered_rows: int = 0


@attrs.define
class StoreGauges:
    """Written by the prompt-cache store."""

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0


@attrs.define
class PersisterGauges:
    """Written by the persister."""

    writes: str = "off"
    """'on', 'off' without a directory, or why none are made any more."""
    files: int = 0
    """Of this model and namespace."""
    bytes: int = 0
    """What the whole directory takes, as du counts."""
    written: int = 0
    """Files that were written and flushed."""
    restored: int = 0
    restored_tokens: int = 0
    restoring_seconds: float = 0.0
    """From the opening of a file to its snapshot, in total."""
    bad_files: int = 0
    restarts: int = 0


@attrs.define
class DeviceGauges:
    """Written by the device thread."""

    steps: int = 0
    chunks: int = 0
    kv_bytes: int = 0
    queue: int = 0


@attrs.define
class ResumingGauges:
    """Written by the registry of resumable streams."""

    attached: int = 0
    detached: int = 0
    detached_rows: int = 0
    bytes: int = 0
    taken_up: int = 0
    let_go: int = 0


@attrs.define
class Gauges:
    """All of them."""

    admission: AdmissionGauges = attrs.Factory(AdmissionGauges)
    prefill: PrefillGauges = attrs.Factory(PrefillGauges)
    decode: DecodeGauges = attrs.Factory(DecodeGauges)
    store: StoreGauges = attrs.Factory(StoreGauges)
    persister: PersisterGauges = attrs.Factory(PersisterGauges)
    device: DeviceGauges = attrs.Factory(DeviceGauges)
    resuming: ResumingGauges = attrs.Factory(ResumingGauges)
