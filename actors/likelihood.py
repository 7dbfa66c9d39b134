"""A row's log-probabilities on their way out: each waits for the text of its token."""

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from motet.channels.caller import Likely, Logprob
from motet.channels.emitter import TokenLogprob
from motet.engine.told import Part
from motet.engine.vocabulary import Vocabulary


@attrs.define(eq=False)
class Likelihood:
    """The log-probabilities of the tokens whose text has not been told yet."""

    _vocabulary: Vocabulary
    _waiting: deque[tuple[int, TokenLogprob]] = attrs.Factory(deque)
    _told: dict[Part, list[Logprob]] = attrs.Factory(dict)

    def came(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens with theirs; nothing if the row does not ask."""
        self._waiting.extend(zip(tokens, logprobs, strict=False))

    def known(self, parts: Iterable[Part | None]) -> None:
        """What has become of the next tokens."""
        for part, (token, logprob) in zip(parts, list(self._waiting), strict=False):
            self._waiting.popleft()
            if part is not None:
                self._told.setdefault(part, []).append(self._written(token, logprob))

    def take(self, part: Part) -> tuple[Logprob, ...]:
        """Those of the part's tokens that have been told of since the last time."""
        return tuple(self._told.pop(part, ()))

    def _written(self, token: int, logprob: TokenLogprob) -> Logprob:
        top = tuple(self._likely(other, value) for other, value in logprob.top)
        return Logprob(self._likely(token, logprob.logprob), top)

    def _likely(self, token: int, logprob: float) -> Likely:
        data = self._vocabulary.data(token)
        return Likely(data.decode(errors="replace"), data, logprob)
