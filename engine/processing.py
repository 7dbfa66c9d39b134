"""What changes a row's logits before anything is drawn from them: logit_bias and the penalties.

mlx-lm's processors could not serve: each is a closure over one row's values and tokens, and the tokens
are concatenated anew each step. These hold several rows' at once, on the device, and the tokens drawn in one
step are taken in by the next without being read.

The repetition penalty is ``make_repetition_penalty`` of mlx-lm (https://arxiv.org/abs/1909.05858), for the
last tokens of prompt and completion. Presence and frequency penalty are OpenAI's
(https://platform.openai.com/docs/api-reference/chat/create), for all tokens of the completion and none of the
prompt; mlx-lm's are for the last 20 tokens of both.
"""

from collections.abc import Sequence

import mlx.core as mx

from motet.engine.filters import column, padded
from motet.engine.session import SamplingSession


class Processing:
    """The processing of a fixed list of rows, in order: bias, repetition, presence, frequency.

    Args:
        sessions: the rows.
        pending: whether their last drawn tokens are on the device, to come with ``apply``; else the
            sessions have them.
        width: of the logits.
    """

    def __init__(self, sessions: Sequence[SamplingSession], *, pending: bool, width: int) -> None:
        generated = [session.generated[: session.drawn - pending] for session in sessions]
        self._bias = _Bias(sessions) if any(s.logit_bias for s in sessions) else None
        repeats = any(s.repetition_penalty != 1 for s in sessions)
        self._repetition = _Repetition(sessions, generated) if repeats else None
        counts = any(s.penalized for s in sessions)
        self._counting = _Counting(sessions, generated, width) if counts else None

    def apply(self, logits: mx.array, fed: mx.array | None) -> mx.array:
        """[R, V] float32 logits, processed.

        Args:
            logits: [R, V], in any dtype.
            fed: [R] the rows' last drawn tokens, unless they are known already.
        """
        logits = logits.astype(mx.float32)
        if self._bias is not None:
            logits = self._bias.apply(logits)
        if self._repetition is not None:
            logits = self._repetition.apply(logits, fed)
        if self._counting is not None:
            logits = self._counting.apply(logits, fed)
        return logits


class _Bias:
    def __init__(self, sessions: Sequence[SamplingSession]) -> None:
        self._rows = _numbers(sessions)
        width = max(len(s.logit_bias) for s in sessions)
        # What fills a shorter row up adds nothing.
        biases = [[*s.logit_bias, *[(0, 0.0)] * (width - len(s.logit_bias))] for s in sessions]
        self._tokens = mx.array([[token for token, _ in row] for row in biases])
        self._values = mx.array([[value for _, value in row] for row in biases], dtype=mx.float32)

    def apply(self, logits: mx.array) -> mx.array:
        return logits.at[self._rows, self._tokens].add(self._values)


class _Repetition:
    """Each row's last tokens, as many as the largest context, the newest last.

    A row that has fewer repeats its oldest, which changes nothing: a token is penalized once however
    often it stands there.
    """

    def __init__(self, sessions: Sequence[SamplingSession], generated: Sequence[list[int]]) -> None:
        self._penalty = column([s.repetition_penalty for s in sessions])
        contexts = [s.repetition_context if s.repetition_penalty != 1 else 1 for s in sessions]
        width = max(contexts)
        last = [
            [*s.prompt[-context:], *its][-context:]
            for s, its, context in zip(sessions, generated, contexts, strict=True)
        ]
        self._window = mx.array(padded(last, width), dtype=mx.uint32)  # [R, width]
        self._outside = None
        if min(contexts) < width:
            self._outside = mx.arange(width) < width - mx.array(contexts)[:, None]

    def apply(self, logits: mx.array, fed: mx.array | None) -> mx.array:
        if fed is not None:
            self._window = mx.concatenate([self._window[:, 1:], fed[:, None]], axis=1)
        tokens = self._window
        if self._outside is not None:
            tokens = mx.where(self._outside, tokens[:, -1:], tokens)
        of_tokens = mx.take_along_axis(logits, tokens, axis=-1)
        of_tokens = mx.where(of_tokens < 0, of_tokens * self._penalty, of_tokens / self._penalty)
        return mx.put_along_axis(logits, tokens, of_tokens, axis=-1)


class _Counting:
    """How often each token of the vocabulary has been generated, by row."""

    def __init__(
        self, sessions: Sequence[SamplingSession], generated: Sequence[list[int]], width: int
    ) -> None:
        self._rows = _numbers(sessions)
        self._presence = column([s.presence_penalty for s in sessions])
        self._frequency = column([s.frequency_penalty for s in sessions])
        self._counts = mx.zeros((len(sessions), width))
        if any(generated):
            most = max(map(len, generated))
            ones = [[0.0] * (most - len(its)) + [1.0] * len(its) for its in generated]
            tokens = mx.array(padded(generated, most))
            self._counts = self._counts.at[self._rows, tokens].add(mx.array(ones))

    def apply(self, logits: mx.array, fed: mx.array | None) -> mx.array:
        if fed is not None:
            self._counts = self._counts.at[self._rows, fed[:, None]].add(1.0)
        logits = logits - self._presence * (self._counts > 0)
        return logits - self._frequency * self._counts


def _numbers(sessions: Sequence[SamplingSession]) -> mx.array:
    return mx.arange(len(sessions))[:, None]
