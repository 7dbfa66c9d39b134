"""A row's constraint: which tokens its grammar allows next.

llguidance's matcher is told each token of the row, and then fills the next mask in another thread, with
the interpreter lock released, while the device thread builds the next forward or runs something else.

Where the grammar leaves only one text, as in a JSON object's keys, the row takes it as the tokenizer
writes it, token by token or several at once: that is the same row either way, whoever is beside it.

A fault in here is its row's alone: the row is then drawn without a mask, and ends with ``fault`` when its
next token is read.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from motet.engine.constraints.grammar import GrammarError

_KEPT = 512  # compiled grammars kept, some tens of KB each
_WORKERS = 2
_SLOWEST_FILL = 1.0  # seconds that a mask may take before its row is given up

Mask: TypeAlias = npt.NDArray[np.uint8]
"""One bit a token, the lowest of the first byte first."""


class Grammars:
    """Compiles grammars and makes rows' constraints, for one tokenizer. Any thread may use it.

    The tokenizer is prepared in a thread at once: seconds for a large vocabulary.

    Args:
        tokenizer: mlx-lm's TokenizerWrapper.
        vocabulary: token ids are below this; the width of the model's logits.
    """

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        # Its threads end when the pool is dropped.
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="motet-grammar")
        self._tokenizer = self._pool.submit(_prepared, tokenizer, vocabulary)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, grammar: str) -> None:
        """Compile a grammar, so that rows begin at once. It can take a second: never on the device thread.

        Raises:
            GrammarError: it cannot be honoured, or not with this tokenizer.
        """
        self._matcher(grammar)

    def constraint(self, grammar: str, generated: Sequence[int] = ()) -> "Constraint":
        """A row's constraint, its first mask being filled.

        Args:
            grammar: what ``check`` has passed.
            generated: tokens that the row has already, if it is recovered.
        """
        return Constraint(self._pool, self._pool.submit(self._begin, grammar, tuple(generated)))

    def _begin(self, grammar: str, generated: tuple[int, ...]) -> "Filled":
        matcher = self._matcher(grammar)
        forced = deque(_forced(matcher))
        for token in generated:
            if forced:
                _go_past(forced, token)
            else:
                _consume(matcher, token)
                forced.extend(_forced(matcher))
        return _filled(matcher, tuple(forced))

    def _matcher(self, grammar: str) -> LLMatcher:
        """A matcher of one's own. Copies share what the lexer has learnt, the first mask included."""
        with self._lock:
            kept = self._compiled.get(grammar)
            if kept is not None:
                self._compiled.move_to_end(grammar)
                return kept.deep_copy()
        matcher = LLMatcher(self._ready(), grammar, log_level=0)
        _refuse(matcher)
        matcher.compute_bitmask()
        _refuse(matcher)
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _ready(self) -> LLTokenizer:
        try:
            return self._tokenizer.result()
        except Exception as error:
            raise GrammarError(f"this model's tokenizer cannot be held to a grammar: {error}") from error


def _prepared(tokenizer: Any, vocabulary: int) -> LLTokenizer:
    inner = tokenizer._tokenizer
    width = max(vocabulary, len(inner))
    return from_tokenizer(inner, n_vocab=width, eos_token=sorted(tokenizer.eos_token_ids) or None)


def _refuse(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(matcher.get_error())


def _consume(matcher: LLMatcher, token: int) -> None:
    if not matcher.consume_token(token):
        raise GrammarError(matcher.get_error() or f"token {token} is not allowed here")


def _forced(matcher: LLMatcher) -> tuple[int, ...]:
    """The tokens that must follow; the matcher goes past them."""
    forced = matcher.compute_ff_tokens()
    return tuple(forced[: matcher.try_consume_tokens(forced)]) if forced else ()


def _go_past(forced: deque[int], token: int) -> None:
    if token != forced.popleft():
        raise GrammarError(f"token {token} is not allowed here")


@attrs.frozen
class Filled:
    """What a grammar allows next: ``forced`` tokens, and behind them what is in ``mask``."""

    matcher: LLMatcher
    forced: tuple[int, ...]
    mask: Mask | None
    """None if the grammar ends there."""


def _fill(matcher: LLMatcher) -> Filled:
    return _filled(matcher, _forced(matcher))


def _filled(matcher: LLMatcher, forced: tuple[int, ...]) -> Filled:
    if forced and matcher.is_stopped() and not matcher.is_error():
        return Filled(matcher, forced, None)
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    _refuse(matcher)
    return Filled(matcher, forced, mask)


class Constraint:
    """One row's place in its grammar. Used on the device thread.

    Args:
        pool: where masks are filled.
        filling: the first of them.
    """

    def __init__(self, pool: ThreadPoolExecutor, filling: "Future[Filled]") -> None:
        self._pool = pool
        self._filling = filling
        self._filled: Filled | None = None
        self._forced: deque[int] = deque()
        self.over = False
        """Whether the grammar has ended: nothing may follow."""
        self.fault: str | None = None

    def accept(self, token: int) -> None:
        """Go past a token of the row, and begin to fill the next mask."""
        if not self._ready():
            return
        assert self._filled is not None
        try:
            if self._forced:
                _go_past(self._forced, token)
                self.over = not self._forced and self._filled.mask is None
                return
            _consume(self._filled.matcher, token)
        except GrammarError as error:
            self.fault = str(error)
            return
        self.over = self._filled.matcher.is_stopped()
        if not self.over:
            self._filling, self._filled = self._pool.submit(_fill, self._filled.matcher), None

    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next, so far as they are known. Waits for the fill."""
        return tuple(self._forced) if self._ready() else ()

    def mask(self) -> Mask | None:
        """The tokens allowed next; None if nothing is to be masked, for the row ends. Waits for the fill."""
        if not self._ready():
            return None
        assert self._filled is not None
        return _only(self._forced[0]) if self._forced else self._filled.mask

    def _ready(self) -> bool:
        if self.over or self.fault is not None:
            return False
        if self._filled is None:
            try:
                self._filled = self._filling.result(_SLOWEST_FILL)
                self._forced.extend(self._filled.forced)
            except TimeoutError:
                self.fault = f"the grammar took more than {_SLOWEST_FILL:g} s for a token"
            except Exception as error:
                self.fault = str(error)
        return self.fault is None


def _only(token: int) -> Mask:
    mask = np.zeros(token // 8 + 1, np.uint8)
    mask[-1] = 1 << token % 8
    return mask


# What is added to the logits of eight tokens, for each value of a mask's byte.
_ADDED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf
)


def constrained(logits: mx.array, constraints: Sequence[Constraint | None]) -> mx.array:
    """The logits with what the rows' grammars forbid at minus infinity; waits for their masks.

    A mask becomes a row of 0 and minus infinity by a look-up, eight tokens at once, which every back end can
    do; llguidance's own kernel is Metal's alone.

    Args:
        logits: [B, V], floating.
        constraints: one a row, None for a row that is free.
    """
    width = logits.shape[-1]
    masks = [(i, its.mask()) for i, its in enumerate(constraints) if its is not None]
    bound = [(i, _sized(mask, width)) for i, mask in masks if mask is not None]
    if not bound:
        return logits
    table = mx.array(_ADDED).astype(logits.dtype)
    added = table[mx.array(np.stack([mask for _, mask in bound]))]
    added = added.reshape(len(bound), -1)[:, :width]
    if len(bound) == len(constraints):
        return logits + added
    return logits.at[mx.array([i for i, _ in bound])].add(added)


def _sized(mask: Mask, width: int) -> Mask:
    """The mask for so many tokens: those that the tokenizer does not have are forbidden."""
    size = -(-width // 8)
    return np.pad(mask[:size], (0, max(size - len(mask), 0)))
