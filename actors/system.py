"""The composition root: opens every channel, starts every actor, tells the end.

    caller -> admission -> prefill -> decode -> emitter -> caller
                  ^          ^  |     ^  |
                  |          |  v     |  v
                  +----------+ store <-> persister          device <- prefill, decode, store

Each mailbox has the capacity that its senders' credits add up to; the argument is docs/protocols.md.
"""

import contextlib
import math
import os
import pathlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import attrs
import structlog
import trio

from motet.actors import admission as admitting
from motet.actors import decode as decoding
from motet.actors import persister as persisting
from motet.actors import prefill as prefilling
from motet.actors.admission import Budget, Limits, admission
from motet.actors.decode import GRANT, decode
from motet.actors.device import DeviceLoop, DevicePort, FromThread, Log, Watch, device
from motet.actors.engine import DEFAULT_MAX_TOKENS, Ends, Engine, EngineInfo
from motet.actors.executor import Executor
from motet.actors.pace import Pace
from motet.actors.persister import persister
from motet.actors.prefill import prefill
from motet.actors.resuming import Keeping, resuming
from motet.actors.store import store
from motet.actors.stream import EngineDied
from motet.channels.admission import ToAdmission
from motet.channels.decode import ToDecode
from motet.channels.device import Command
from motet.channels.gauges import Gauges
from motet.channels.mailbox import Outlet, post
from motet.channels.namespace import Namespace
from motet.channels.persister import ToPersister
from motet.channels.prefill import ToPrefill
from motet.channels.resuming import ToResuming
from motet.channels.store import ToStore
from motet.engine import measuring, selftest
from motet.engine.constraints.constraint import Grammars
from motet.engine.fingerprint import fingerprint
from motet.engine.group import Observe
from motet.engine.memory import AutomaticBudget, automatic_budget, limit_reuse
from motet.engine.model import Model

log = structlog.get_logger()


@attrs.frozen
class Settings:
    """How an engine is to run."""

    batch: int = 8
    """Rows decoded together at most."""
    prompt_concurrency: int = 8
    """Prompts read by turns at most."""
    prefill_step_size: int = 2048
    """Prompt tokens read at once at most; with ``batch`` 1, exactly."""
    max_decode_stall: float = 0.2
    """Seconds that reading a prompt may hold up running rows, between two of their steps."""
    prompt_cache_bytes: int | None = None
    """Ceiling of the prompt cache in memory; 0 for none, None for half of what rows and it may take."""
    prompt_cache_dir: str | os.PathLike[str] | None = None
    """Where prefixes are kept beyond the process; None for nowhere."""
    prompt_cache_disk_bytes: int = 10 << 30
    """Ceiling of that directory."""
    kv_budget: int | None = None
    """Bytes for rows and prompt cache together; None for what the device has left."""
    queue_limit: int = 256
    """Requests that wait at most."""
    queue_timeout: float | None = None
    """Seconds that a request waits at most; None or 0 for as long as it takes."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    """Tokens to generate when a request does not say."""
    resume_window: float = 30.0
    """Seconds that a resumable stream runs on without a reader; 0 for no such streams."""
    resume_rows: int = 4
    """Rows at most that run without a reader."""
    resume_bytes: int = 64 << 20
    """Bytes at most of the events of streams without a reader."""
    device_timeout: float = 300.0
    """Seconds that one command on the device may take before the engine gives up on it."""


Load = Callable[[], tuple[Model, Any]]
"""Loads the model and its tokenizer; called on the device thread."""


@attrs.frozen
class Loaded:
    """What the device thread reports when it is ready."""

    info: EngineInfo
    tokenizer: Any
    grammars: Grammars


@contextlib.asynccontextmanager
async def open_system(
    load: Load,
    settings: Settings,
    *,
    observe: Observe | None = None,
    log_command: Log | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine for as long as the block lasts; leaving it ends every row at once.

    Args:
        load: makes the model, on the device thread.
        settings: how to run.
        observe, log_command: see Group and DeviceLoop; called on the device thread.

    Raises:
        EngineDied: the engine ended by itself, and the block did not raise.
        Exception: what loading raised, or the block.
    """
    body: BaseException | None = None
    engine: Engine | None = None
    try:
        async with trio.open_nursery() as nursery:
            engine = await nursery.start(
                partial(_run, load, settings, observe=observe, log_command=log_command)
            )
            try:
                yield engine
            except BaseException as error:
                body = error
                raise
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # A nursery wraps what passes through it; callers are to see their own errors as they were.
        alone = body if body is not None else _only(group)
        if alone is None:
            raise
        raise alone from alone.__cause__
    if engine is not None and engine.death is not None:
        raise EngineDied("the engine has ended") from engine.death


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The single error in a group of groups, or None if there are several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error


async def _run(
    load: Load,
    settings: Settings,
    *,
    observe: Observe | None,
    log_command: Log | None,
    task_status: trio.TaskStatus[Engine],
) -> None:
    """All actors, until a drain is over or one of them fails. A failure is the engine's death."""
    engine: Engine | None = None
    try:
        async with trio.open_nursery() as nursery:
            engine = await _start(nursery, load, settings, observe, log_command)
            task_status.started(engine)
    except Exception as error:
        if engine is None:
            raise
        engine.death = (_only(error) if isinstance(error, ExceptionGroup) else None) or error
        log.error("engine died", error=str(engine.death), exc_info=engine.death)
    finally:
        if engine is not None:
            engine.over.set()


class Mailboxes:
    """Every mailbox, sized by the credits of those who post into it (docs/protocols.md)."""

    def __init__(self, settings: Settings) -> None:
        # Seats outnumber places so that finished rows with slow readers do not keep the batch empty.
        self.seats = seats = 4 * settings.batch
        open_requests = seats + 2 * settings.queue_limit  # a queue of each priority
        self.to_admission, self.admission = trio.open_memory_channel[ToAdmission](
            2 * open_requests + 2 * seats + 4
        )
        self.to_prefill, self.prefill = trio.open_memory_channel[ToPrefill](6 * seats + 4)
        self.to_decode, self.decode = trio.open_memory_channel[ToDecode](8 * seats + 2 * GRANT + 3)
        self.to_store, self.store = trio.open_memory_channel[ToStore](8 * seats + 4)
        self.to_persister, self.persister = trio.open_memory_channel[ToPersister](4 * seats + 10)
        # Bounded by the text of the streams that live, as what callers hear is.
        self.to_resuming, self.resuming = trio.open_memory_channel[ToResuming](math.inf)
        self.to_tickets, self.tickets = trio.open_memory_channel[None](open_requests)
        for _ in range(open_requests):
            post(self.to_tickets, None)

    def depths(self) -> dict[str, int]:
        """Messages waiting in each."""
        names = ("admission", "prefill", "decode", "store", "persister", "resuming")
        return {name: getattr(self, name).statistics().current_buffer_used for name in names}


async def _start(
    nursery: trio.Nursery,
    load: Load,
    settings: Settings,
    observe: Observe | None,
    log_command: Log | None,
) -> Engine:
    """Start the device, load the model there, start the actors."""
    boxes, gauges = Mailboxes(settings), Gauges()
    port, watch = DevicePort(), Watch()
    token = trio.lowlevel.current_trio_token()

    def build() -> tuple[DeviceLoop, Loaded]:
        model, tokenizer = load()
        tested = selftest.run(model, settings.batch)
        places = settings.batch if tested.alone is None else 1
        snapshots = tested.snapshots and settings.prompt_cache_bytes != 0
        kept = settings.prompt_cache_dir is not None
        namespace = Namespace(fingerprint(model) if kept else "")
        projection = measuring.measure(
            model, batched=places > 1, chunk=settings.prefill_step_size, keeps=snapshots
        )
        automatic = automatic_budget(model.facts.weight_bytes)
        limit_reuse(automatic.headroom)
        grammars = Grammars(tokenizer, model.facts.vocabulary)  # after the measuring, which it would disturb
        executor = Executor(
            model,
            snapshots=snapshots,
            firsts_apart=tested.fresh is not None,
            grammars=grammars,
            namespace=namespace,
            part_seconds=settings.max_decode_stall / 2,  # a step of the larger group follows the last
            observe=observe,
        )
        loop = DeviceLoop(
            executor,
            port,
            FromThread(token, boxes.to_prefill),
            FromThread(token, boxes.to_decode),
            FromThread(token, boxes.to_persister),
            gauges.device,
            watch,
            log_command=log_command,
        )
        budget = _budget(settings, automatic)
        info = EngineInfo(model.facts, tested, settings.batch, places, budget, projection, namespace)
        return loop, Loaded(info, tokenizer, grammars)

    loaded: Loaded = await nursery.start(
        partial(device, build, port, watch, timeout=settings.device_timeout), name="device"
    )
    _log_loaded(loaded.info)
    return start_actors(nursery, settings, boxes, port, loaded, gauges)


def _budget(settings: Settings, automatic: AutomaticBudget) -> int:
    """The bytes that rows and prompt cache may take."""
    if settings.kv_budget is not None:
        return settings.kv_budget
    if automatic.floored:
        log.warning("little memory is left beside the weights", **attrs.asdict(automatic))
    return automatic.budget


def _log_loaded(info: EngineInfo) -> None:
    log.info(
        "model loaded",
        model=info.facts.name,
        weight_bytes=info.facts.weight_bytes,
        dtype=info.facts.dtype,
        step_ms=round(1000 * info.selftest.step_seconds, 2),
        kv_budget_bytes=info.kv_budget,
    )
    if info.places < info.batch:
        log.warning("rows are served one at a time", reason=info.selftest.alone)
    elif info.selftest.apart is not None:
        log.warning("prompts are read one at a time", reason=info.selftest.apart)
    elif info.selftest.level is not None:
        log.info("prompts are read in equal parts", reason=info.selftest.level)


def start_actors(
    nursery: trio.Nursery,
    settings: Settings,
    boxes: Mailboxes,
    port: Outlet[Command],
    loaded: Loaded,
    gauges: Gauges,
) -> Engine:
    """Start every actor but the device, which listens behind ``port``; return the callers' side."""
    info = loaded.info
    cache = settings.prompt_cache_bytes
    keeps = info.selftest.snapshots and cache != 0
    budget = Budget(info.kv_budget, info.kv_budget // 2 if cache is None else cache, info.projection)
    start = nursery.start_soon
    start(
        admission,
        boxes.admission,
        admitting.Outlets(boxes.to_prefill, boxes.to_store, boxes.to_tickets, boxes.to_resuming),
        Limits(info.places, boxes.seats, settings.queue_limit, settings.queue_timeout or math.inf),
        budget,
        gauges.admission,
        name="admission",
    )
    start(
        prefill,
        boxes.prefill,
        prefilling.Outlets(boxes.to_admission, boxes.to_store, port, boxes.to_decode),
        Pace(
            stall=settings.max_decode_stall,
            largest=settings.prefill_step_size,
            forward_seconds=info.selftest.step_seconds,
            shape_seconds=info.selftest.shape_seconds,
            token_seconds=info.selftest.token_seconds,
            fixed=settings.batch == 1,
            joiners=settings.prompt_concurrency,
            together=info.selftest.apart is None,
            padded=info.selftest.level is None,
            keeps=keeps,
            cuts=info.selftest.cuts,
            namespace=info.namespace,
        ),
        gauges.prefill,
        name="prefill",
    )
    start(
        decode,
        boxes.decode,
        decoding.Outlets(boxes.to_admission, boxes.to_prefill, boxes.to_store, port),
        gauges.decode,
        name="decode",
    )
    start(
        store,
        boxes.store,
        boxes.to_prefill,
        boxes.to_persister,
        port,
        boxes.to_admission,
        budget.cache_at_first,
        gauges.store,
        name="store",
    )
    directory = settings.prompt_cache_dir
    start(
        persister,
        boxes.persister,
        boxes.to_persister,
        persisting.Outlets(boxes.to_store, port),
        pathlib.Path(directory) if directory is not None and keeps else None,
        settings.prompt_cache_disk_bytes,
        gauges.persister,
        name="persister",
    )
    start(
        resuming,
        boxes.resuming,
        boxes.to_admission,
        Keeping(settings.resume_window, settings.resume_rows, settings.resume_bytes),
        gauges.resuming,
        name="resuming",
    )
    ends = Ends(boxes.to_admission, boxes.to_resuming, boxes.to_decode, boxes.tickets)
    return Engine(
        info,
        loaded.tokenizer,
        loaded.grammars,
        ends,
        nursery,
        gauges,
        boxes.depths,
        settings.max_tokens,
        queue_limit=settings.queue_limit,
        resumes=settings.resume_window > 0,
    )
