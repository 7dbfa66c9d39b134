"""The engine as its callers see it: the client side of the actors' protocols.

``Engine.generate`` opens a row, yields its stream of events, and on leaving, however, withdraws it.
"""

import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from motet.actors.emitter import emitter
from motet.actors.intake import Intake, InvalidRequest, Prompt, Tokens, is_chat
from motet.actors.limits import check_rows, check_sampling
from motet.actors.request import Request
from motet.actors.resumable import Registry, TakenUp
from motet.actors.stream import EngineDied, NotTaken, Rows, Stream
from motet.actors.structure import checked_grammar
from motet.channels import admission, caller, decode, resuming
from motet.channels.emitter import ToEmitter, capacity
from motet.channels.gauges import Gauges
from motet.channels.mailbox import Outlet, post
from motet.channels.namespace import UNNAMED, Namespace
from motet.channels.request import Work
from motet.channels.resuming import OpenRow
from motet.engine.constraints.constraint import Grammars
from motet.engine.model import ModelFacts
from motet.engine.output import Output
from motet.engine.projection import Projection, RowLength
from motet.engine.reasoning import REASONING, Markup
from motet.engine.selftest import SelfTest
from motet.engine.vocabulary import Vocabulary

DEFAULT_MAX_TOKENS = 512
_CHECKED_AT_ONCE = 4096  # token ids
_SEEDS = 1 << 64
_FLUSH = 5.0  # seconds that callers have to leave after a drain's end


@attrs.frozen
class EngineInfo:
    """What was found at start: read at /stats."""

    facts: ModelFacts
    selftest: SelfTest
    batch: int
    """Rows at once, as configured."""
    places: int
    """Rows at once, as this model allows."""
    kv_budget: int
    """Bytes for the rows and the prompt cache."""
    projection: Projection
    """What rows cost."""
    namespace: Namespace = UNNAMED
    """In which its rows' states are kept."""


@attrs.frozen
class Ends:
    """The channel ends that callers use."""

    admission: Outlet[admission.ToAdmission]
    resuming: trio.MemorySendChannel[resuming.ToResuming]
    decode: Outlet[decode.Stop]
    tickets: trio.MemoryReceiveChannel[None]


class Engine:
    """A running engine. Made by ``motet.open_engine``."""

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Any,
        grammars: Grammars,
        ends: Ends,
        nursery: trio.Nursery,
        gauges: Gauges,
        depths: Callable[[], dict[str, int]],
        max_tokens: int,
        *,
        queue_limit: int,
        resumes: bool,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.gauges = gauges
        self.max_tokens = max_tokens
        self.over = trio.Event()
        """Set when the engine has ended, by a drain or by its death."""
        self.death: BaseException | None = None
        self._intake = Intake(tokenizer, info.facts.vocabulary, info.facts.context, info.selftest.cuts)
        self._markup = Markup(tokenizer)
        self._stop_tokens = frozenset(tokenizer.eos_token_ids)
        self._vocabulary = Vocabulary(tokenizer)
        # As mlx_lm.server: XTC never excludes the ends of lines and of texts.
        newline = tokenizer.encode("\n", add_special_tokens=False)
        self._xtc_special = (*sorted(self._stop_tokens), *newline)
        self._grammars = grammars
        self._ends = ends
        self._nursery = nursery
        self._depths = depths
        self._numbers = itertools.count(1)
        self._tokenizing = trio.CapacityLimiter(2)
        self._compiling = trio.CapacityLimiter(1)
        self._parsing = trio.CapacityLimiter(2)
        self._draining = False
        self._queue_limit = queue_limit
        self._resumes = resumes
        self._registry = Registry(ends.resuming, lambda: self.death)

    @property
    def health(self) -> str:
        """'ok', 'draining' or 'failed'."""
        if self.death is not None:
            return "failed"
        return "draining" if self._draining or self.over.is_set() else "ok"

    def statistics(self) -> dict[str, Any]:
        """Numbers of the moment, as plain values."""
        gauges, info = self.gauges, self.info
        return {
            "batch": {
                "configured": info.batch,
                "mode": "batch" if info.places > 1 else "serial",
                "reason": info.selftest.alone,
                "active_rows": gauges.decode.active_rows,
                "preparing_rows": gauges.prefill.preparing_rows,
                "pending_rows": gauges.admission.pending_rows,
                "pending_by_priority": {
                    "interactive": gauges.admission.pending_rows - gauges.admission.pending_background_rows,
                    "background": gauges.admission.pending_background_rows,
                },
                "displaced_rows": gauges.admission.displaced_rows,
                "submitted_rows": gauges.admission.submitted_rows,
                "kv_bytes": gauges.device.kv_bytes,
                "kv_projected_bytes": gauges.admission.kv_projected_bytes,
                "kv_budget_bytes": info.kv_budget,
            },
            "resume": attrs.asdict(gauges.resuming),
            "prompt_cache": attrs.asdict(gauges.store) | {"disk": attrs.asdict(gauges.persister)},
            "device": {
                "steps": gauges.device.steps,
                "chunks": gauges.device.chunks,
                "queue": gauges.device.queue,
                "step_faults": gauges.decode.step_faults,
                "recovered_rows": gauges.decode.recovered_rows,
            },
            "actors": self._depths(),
            "tokens": {
                "prompt": gauges.prefill.prompt_tokens,
                "cached": gauges.prefill.cached_tokens,
                "generated": gauges.decode.tokens,
            },
            "model": attrs.asdict(info.facts),
            "selftest": attrs.asdict(info.selftest),
            "projection": attrs.asdict(info.projection),
        }

    @contextlib.asynccontextmanager
    async def generate(self, prompt: Prompt, **options: Any) -> AsyncIterator[Stream]:
        """Open a row, or ``n``; see Request for the options. Leaving the block cancels them.

        Raises:
            InvalidRequest: the request cannot be served as it stands.
            NotTaken: too many wait, or the engine is draining.
            EngineDied: the engine has ended.
        """
        async with self.open_rows([Request(prompt, **options)]) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def open_rows(self, requests: Sequence[Request]) -> AsyncIterator[Stream]:
        """As ``generate`` for several requests at once.

        Events carry the row's index: the first request's rows come first.
        """
        opening = await self._opening(requests)
        with contextlib.ExitStack() as leaving:
            to_caller, events = trio.open_memory_channel[caller.ToCaller](float("inf"))
            leaving.enter_context(events)
            rows = Rows()
            leaving.callback(rows.withdraw_all)
            with to_caller:
                for index, (request, work) in enumerate(opening):
                    self._take_ticket()
                    row = self._open(request, work, index, to_caller.clone())
                    rows.opened(index, partial(self._withdraw, row))
            stream = Stream(events, [len(work.prompt) for _, work in opening], rows, lambda: self.death)
            await stream.accepted()
            yield stream

    @contextlib.asynccontextmanager
    async def open_resumable(
        self, requests: Sequence[Request], name: str, label: object
    ) -> AsyncIterator[Stream]:
        """As ``open_rows``, but leaving the block cancels nothing: the stream can be taken up again.

        It runs on for ``Settings.resume_window`` seconds, or until its rows are needed for others.

        Args:
            requests: what to generate.
            name: what ``take_up`` is to call it.
            label: what that is to give back.
        """
        if not self._resumes:
            raise InvalidRequest(
                "this server keeps no streams for those that lose them", "resumable", "unsupported_parameter"
            )
        opening = await self._opening(requests)
        rows: list[OpenRow] = []
        try:
            for index, (request, work) in enumerate(opening):
                self._take_ticket()
                rows.append(self._open(request, work, index, self._registry.named(name)))
        except Exception:
            for row in rows:
                self._withdraw(row)
            raise
        async with self._registry.begun(name, label, rows) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def take_up(self, name: str) -> AsyncIterator[TakenUp]:
        """Read a resumable stream again, from its first event on; whoever read it is told so.

        Raises:
            StreamGone: there is none of that name, or no more.
            EngineDied: the engine has ended.
        """
        async with self._registry.taken_up(name) as taken:
            yield taken

    def _take_ticket(self) -> None:
        """Before each row is opened."""
        if self.death is not None:
            raise EngineDied("the engine has ended") from self.death
        # Behind a Drain a Submit could find that admission has left already.
        if self._draining:
            raise NotTaken("draining")
        try:
            self._ends.tickets.receive_nowait()
        except trio.WouldBlock:
            raise NotTaken("busy") from None

    def _open(self, request: Request, work: Work, index: int, to_caller: caller.Outgoing) -> OpenRow:
        """Submit a row."""
        outlet, inbox = trio.open_memory_channel[ToEmitter](capacity(work.limit))
        self._nursery.start_soon(
            emitter,
            inbox,
            to_caller,
            self._ends.decode,
            work,
            index,
            partial(self._output, request, work.prompt),
            self._vocabulary,
            self._parsing,
            name=f"emitter {work.row}",
        )
        post(self._ends.admission, admission.Submit(work, outlet))
        return OpenRow(work.row, outlet, len(work.prompt))

    def _withdraw(self, row: OpenRow) -> None:
        row.outlet.close()
        post(self._ends.admission, admission.Withdraw(row.number))

    async def _opening(self, requests: Sequence[Request]) -> list[tuple[Request, Work]]:
        """The requests' rows, each with its request."""
        check_rows(requests, self._queue_limit)
        for request in requests:
            check_sampling(request, self.info.facts.vocabulary)
        rows_of = [(request, await self._works(request)) for request in requests]
        return [(request, work) for request, works in rows_of for work in works]

    async def tokenize(self, request: Request) -> tuple[int, ...]:
        """The tokens that the model would read.

        Raises:
            InvalidRequest: the prompt cannot be read, or is longer than the context.
        """
        return (await self._tokens(request)).tokens

    async def detokenize(self, tokens: Sequence[int], param: str) -> str:
        """The text of token ids, with that of special tokens.

        Raises:
            InvalidRequest: one is outside the vocabulary.
        """
        return await trio.to_thread.run_sync(self._intake.text, tokens, param, limiter=self._tokenizing)

    async def _tokens(self, request: Request) -> Tokens:
        if _short_ids(request.prompt):
            return self._intake.read(request.prompt, request.param)
        return await trio.to_thread.run_sync(
            partial(self._intake.read, template=request.template, tools=request.tools),
            request.prompt,
            request.param,
            limiter=self._tokenizing,
        )

    async def _grammar(self, request: Request, read: Tokens) -> str | None:
        """What the row's whole text must match, compiled."""
        if request.grammar is None and not request.must_call:
            return None
        thinks = is_chat(request.prompt) and self._markup.begins(read.tokens) == REASONING
        return await trio.to_thread.run_sync(
            partial(checked_grammar, self._grammars, self.tokenizer, request, thinks=thinks),
            limiter=self._compiling,
            abandon_on_cancel=True,
        )

    def _output(self, request: Request, prompt: tuple[int, ...]) -> Output:
        if not is_chat(request.prompt):
            return Output(self._markup, request.stop, after=prompt)
        return Output(
            self._markup,
            request.stop,
            begins=self._markup.begins(prompt),
            tools=request.tools,
            parallel=request.parallel_tool_calls,
        )

    async def _works(self, request: Request) -> list[Work]:
        """The request's rows."""
        read = await self._tokens(request)
        first = self._work(request, read, await self._grammar(request, read))
        if request.n == 1:
            return [first]
        # Its snapshot is all that the others need, wherever caches cannot be cut; and if its one chunk is
        # on its way already when they come, it keeps one all the same.
        end = {len(read.tokens) - 1} - {0}
        first = attrs.evolve(first, boundaries=tuple(sorted({*read.boundaries} | end)), siblings=first.row)
        rows = [first]
        for i in range(1, request.n):
            sampling = attrs.evolve(first.sampling, seed=(first.sampling.seed + i) % _SEEDS)
            rows.append(attrs.evolve(first, row=next(self._numbers), sampling=sampling))
        return rows

    def _work(self, request: Request, read: Tokens, grammar: str | None) -> Work:
        prompt = read.tokens
        limit = self.max_tokens if request.max_tokens is None else request.max_tokens
        if self.info.facts.context is not None:
            limit = min(limit, self.info.facts.context - len(prompt))
        self._refuse_too_large(RowLength(len(prompt), limit))
        seed = secrets.randbits(63) if request.seed is None else request.seed
        return Work(
            next(self._numbers),
            prompt,
            limit,
            request.sampling(seed, grammar, self.info.facts.sampling, self._xtc_special),
            self._stop_tokens,
            read.boundaries,
            request.client,
            request.priority,
        )

    def _refuse_too_large(self, row: RowLength) -> None:
        """Refuse a row that would not fit the budget with nothing beside it: it would wait for ever."""
        needed, budget = self.info.projection.needed([row]), self.info.kv_budget
        if needed > budget:
            raise InvalidRequest(
                f"{row.prompt} prompt tokens and {row.limit} to generate may need {needed} bytes; the budget "
                f"is {budget} bytes. Ask for fewer tokens",
                "max_tokens",
                "kv_budget_exceeded",
            )

    async def drain(self, grace: float) -> None:
        """Take no new work; wait for what runs, ``grace`` seconds at most, then end it truthfully."""
        self._draining = True
        post(self._ends.resuming, resuming.Drain())
        post(self._ends.admission, admission.Drain())
        with trio.move_on_after(grace):
            await self.over.wait()
            return
        post(self._ends.admission, admission.Cutoff())
        with trio.move_on_after(_FLUSH):
            await self.over.wait()


def _short_ids(prompt: Prompt) -> bool:
    """Whether a prompt is so few token ids that a thread would cost more than checking them."""
    return len(prompt) <= _CHECKED_AT_ONCE and bool(prompt) and isinstance(prompt[0], int)
