"""A row's constraint: which tokens its grammar allows next.

llguidance's matcher is told each token of the row, and then fills the next mask in a thread of its own, with
the interpreter lock released, while the device thread builds the next forward or runs something else.

A fault in here is its row's alone: the row is then drawn without a mask, and ends with ``fault`` when its next
token is read.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer

from motet.engine.constraints.grammar import GrammarError

_KEPT = 64  # compiled grammars kept
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
        for token in generated:
            _consume(matcher, token)
        return _fill(matcher)

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


Filled: TypeAlias = tuple[LLMatcher, Mask]
"""A matcher, and what it allows next."""


def _fill(matcher: LLMatcher) -> Filled:
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    _refuse(matcher)
    return matcher, mask


class Constraint:
    """One row's place in its grammar. Used on the device thread.

    Args:
        pool: where masks are filled.
        filling: the first of them.
    """

    def __init__(self, pool: ThreadPoolExecutor, filling: "Future[Filled]") -> None:
        self._pool = pool
        self._filling = filling
        self.over = False
        """Whether the grammar has ended: nothing may follow."""
        self.fault: str | None = None

    def accept(self, token: int) -> None:
        """Go past a token that was drawn, and begin to fill the next mask."""
        filled = self._filled()
        if filled is None:
            return
        matcher, _ = filled
        try:
            _consume(matcher, token)
            self.over = matcher.is_stopped()
        except GrammarError as error:
            self.fault = str(error)
            return
        if not self.over:
            self._filling = self._pool.submit(_fill, matcher)

    def mask(self) -> Mask | None:
        """The tokens allowed next; None if nothing is to be masked, for the row ends. Waits for the fill."""
        filled = self._filled()
        return None if filled is None else filled[1]

    def _filled(self) -> Filled | None:
        if self.over or self.fault is not None:
            return None
        try:
            return self._filling.result(_SLOWEST_FILL)
        except TimeoutError:
            self.fault = f"the grammar took more than {_SLOWEST_FILL:g} s for a token"
        except Exception as error:
            self.fault = str(error)
        return None


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
