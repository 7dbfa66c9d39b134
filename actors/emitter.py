"""The emitter, one a request: from tokens to the caller's events.

Owns: the row's output (text, thinking, tool calls, stop strings) and its counts.
Takes: what becomes of the row, from admission, prefill and decode.
Sends: events to the caller; Stop to decode.
Waited for by: its caller alone.

A fault in here is its row's: the caller is told, decode drops the row.

Long tool calls are parsed on a thread: what a model repeats for ever can take mlx-lm's gemma4 parser seconds,
for which no other row must wait.
"""

from collections.abc import Callable
from typing import Any, Literal, assert_never

import attrs
import structlog
import trio

from motet.actors.likelihood import Likelihood
from motet.channels import caller, decode
from motet.channels.emitter import (
    Accepted,
    Failed,
    Finish,
    Prepared,
    Rejected,
    ToEmitter,
    TokenLogprob,
    Tokens,
)
from motet.channels.mailbox import Outlet, post
from motet.channels.request import Work
from motet.engine.output import Output
from motet.engine.pieces import Piece
from motet.engine.vocabulary import Vocabulary

log = structlog.get_logger()

LONG = 1024
"""Letters of tool calls that are parsed on a thread, if so many wait for their end."""


async def emitter(
    inbox: trio.MemoryReceiveChannel[ToEmitter],
    to_caller: caller.Outgoing,
    to_decode: Outlet[decode.Stop],
    work: Work,
    index: int,
    output: Callable[[], Output],
    vocabulary: Vocabulary,
    parsing: trio.CapacityLimiter,
) -> None:
    """Run until the row's terminal event, or until the caller has left.

    A channel that closes without one means that the engine died.
    """
    row = Emitter(to_caller, to_decode, work, index, Likelihood(vocabulary))
    with inbox, to_caller:
        try:
            row.output = output()
            async for message in inbox:
                row.now = trio.current_time()
                if row.output.pending < LONG:
                    row.hear(message)
                else:
                    # A caller that leaves does not wait for the thread, which holds nothing but this row's.
                    await trio.to_thread.run_sync(row.hear, message, abandon_on_cancel=True, limiter=parsing)
                row.send()
                if row.over:
                    return
        except Exception as error:  # contained: the row fails, nothing else
            log.exception("emitter failed", request=work.row)
            row.send()
            post(to_caller, caller.Failed(index, "emitter_failed", f"{type(error).__name__}: {error}"))
            post(to_decode, decode.Stop(work.row))
            return
    row.now = trio.current_time()
    row.left()


@attrs.define(eq=False)
class Emitter:
    """One row's way out. Every decision is synchronous, and knows nothing of Trio."""

    _to_caller: Outlet[caller.ToCaller]
    _to_decode: Outlet[decode.Stop]
    _work: Work
    _index: int
    _likelihood: Likelihood
    output: Output = attrs.field(init=False)
    over: bool = False
    _completion: int = 0
    _cached: int = 0
    now: float = attrs.Factory(trio.current_time)
    """When the message was taken."""
    _began: float = attrs.field(init=False)
    _first: float | None = None
    _to_say: list[tuple[Outlet[Any], object]] = attrs.Factory(list)

    def __attrs_post_init__(self) -> None:
        self._began = self.now

    def send(self) -> None:
        """Tell others what came of the messages that were heard."""
        said, self._to_say = self._to_say, []
        for outlet, message in said:
            post(outlet, message)

    def hear(self, message: ToEmitter) -> None:
        """Take one message and act on it."""
        match message:
            case Tokens(tokens, finish, logprobs):
                self._tokens(tokens, finish, logprobs)
            case Prepared(cached):
                self._cached = cached
            case Accepted():
                self._say(caller.Accepted(self._index))
            case Rejected(code):
                self._say(caller.Rejected(self._index, code))
                self.over = True
            case Failed(code, why):
                self._say(caller.Failed(self._index, code, why))
                self._log("request failed", code=code, error=why)
                self.over = True
            case _:
                assert_never(message)

    def _tokens(
        self, tokens: tuple[int, ...], finish: Finish | None, logprobs: tuple[TokenLogprob, ...]
    ) -> None:
        if self._first is None:
            self._first = self.now
        ends = bool(tokens) and tokens[-1] in self._work.stop_tokens
        text = tokens[:-1] if ends else tokens
        pieces, used = self.output.push(text)
        self._likelihood.came(text, logprobs)
        self._likelihood.known(self.output.told())
        for piece in pieces:
            self._say(self._event(piece, self._completion + piece.used))
        if self.output.ended:
            if finish is None:
                self._to_say.append((self._to_decode, decode.Stop(self._work.row)))
            finish = "stop"
        else:
            used += ends
        self._completion += used
        if finish is not None:
            self._finish(finish)

    def _finish(self, finish: Finish) -> None:
        pieces = self.output.finish(cut=finish == "length")
        self._likelihood.known(self.output.told())
        for piece in pieces:
            self._say(self._event(piece, self._completion))
        left = self._likelihood.take("text")
        if left:  # of half a character
            self._say(caller.Text(self._index, "", self._completion, left))
        output = self.output
        reason: Literal["stop", "length", "tool_calls"] = "stop" if output.stop is not None else finish
        if reason == "stop" and output.stop is None and output.called:
            reason = "tool_calls"
        counts = (len(self._work.prompt), self._completion, self._cached, output.reasoning_tokens)
        self._say(caller.Finished(self._index, reason, caller.Usage(*counts), output.stop))
        if output.faults:
            log.warning("malformed tool call", request=self._work.row, errors=output.faults)
        self._log("request finished", reason=reason)
        self.over = True

    def _event(self, piece: Piece, completion: int) -> caller.ToCaller:
        match piece.kind:
            case "text":
                return caller.Text(self._index, piece.text, completion, self._likelihood.take("text"))
            case "reasoning":
                logprobs = self._likelihood.take("reasoning")
                return caller.Reasoning(self._index, piece.text, completion, logprobs)
            case "call":
                return caller.ToolCall(self._index, piece.call, piece.text, piece.id, piece.name)

    def left(self) -> None:
        """The caller has gone before the end."""
        self._log("request withdrawn")

    def _say(self, event: caller.ToCaller) -> None:
        self._to_say.append((self._to_caller, event))

    def _log(self, event: str, **more: object) -> None:
        log.info(
            event,
            request=self._work.row,
            prompt_tokens=len(self._work.prompt),
            cached_tokens=self._cached,
            completion_tokens=self._completion,
            first_token_s=None if self._first is None else round(self._first - self._began, 4),
            total_s=round(self.now - self._began, 4),
            **more,
        )
