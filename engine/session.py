"""A sampling session: what one row's next tokens are drawn by, wherever the row is."""

import attrs

_MASK64 = (1 << 64) - 1
_COLDEST = 1e-5
_GOLDEN = 0x9E3779B97F4A7C15


@attrs.define(eq=False)
class SamplingSession:
    """One row's sampling: its settings, its tokens, and how many samples it has drawn.

    ``temperature`` 0 is greedy; ``top_p`` 1, ``top_k`` 0, ``min_p`` 0, ``xtc_probability`` 0,
    ``repetition_penalty`` 1 and the other penalties 0 are off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    drawn: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special: tuple[int, ...] = ()
    """Tokens that XTC never excludes."""
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    """How many of the last tokens, the prompt's too, the repetition penalty is for; at least 1."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None, or how many of the likeliest tokens to tell of beside the drawn token's log-probability."""
    prompt: tuple[int, ...] = ()
    """Not empty if there is a repetition penalty."""
    generated: list[int] = attrs.Factory(list)
    """The tokens that were drawn and read: all, but the last while it is still on the device."""

    @property
    def warm(self) -> bool:
        """Whether it draws by chance; so near to 0 the division would overflow, and is greedy anyway."""
        return self.temperature >= _COLDEST

    @property
    def penalized(self) -> bool:
        """Whether its generated tokens make a difference to what comes next."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def processed(self) -> bool:
        """Whether its logits are changed before anything is drawn from them."""
        return bool(self.logit_bias) or self.repetition_penalty != 1 or self.penalized

    @property
    def filtered(self) -> bool:
        """Whether some tokens are excluded before a warm draw."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.xtc_probability > 0

    def certain(self, token: int) -> tuple[float, tuple[tuple[int, float], ...]] | None:
        """What is told of a token that had to come, if log-probabilities are asked for."""
        return None if self.logprobs is None else (0.0, ((token, 0.0),)[: self.logprobs])

    def next_key(self) -> tuple[int, int]:
        """The random key of the next sample, from the seed and the sample's index alone.

        The two words of SplitMix64 (Steele, Lea, Flood 2014) seeded with ``seed`` at ``drawn``.
        """
        z = _splitmix(self.seed, self.drawn)
        return z >> 32, z & 0xFFFFFFFF

    def excludes_top_choices(self) -> bool:
        """Whether XTC is applied to the next sample: by chance, from the seed and the index alone.

        The chance comes from a second SplitMix64, seeded with the first's mix of the seed, so that it has
        nothing to do with the sample's own random numbers.
        """
        if self.xtc_probability == 0:
            return False
        return (_splitmix(_splitmix(self.seed, 0), self.drawn) >> 11) * 2.0**-53 <= self.xtc_probability


def _splitmix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * _GOLDEN) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)
