"""What a caller asks for, once it is tokenized: plain values that travel with the row."""

from typing import Literal

import attrs


@attrs.frozen
class Sampling:
    """How the next token is drawn.

    ``temperature`` 0 is greedy. ``top_p`` 1 is off, 0 leaves only the likeliest token. ``top_k`` 0 is off.
    ``min_p`` in [0, 1], 0 is off. ``xtc_probability`` 0, ``repetition_penalty`` 1, the other penalties 0 are
    off.
    ``seed`` and the sample's index alone pick the random key.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special: tuple[int, ...] = ()
    """Tokens that XTC never excludes."""
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    """Tokens, the last ones of prompt and completion; 0 for all."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: none; else each token's log-probability, and so many of the likeliest."""
    grammar: str | None = None
    """What the text must match, serialized for the engine's constraint; None: anything."""


Priority = Literal["interactive", "background"]


@attrs.frozen
class Work:
    """One row to be: its prompt, how to sample, when to end."""

    row: int
    prompt: tuple[int, ...]
    limit: int
    """Tokens to generate at most, at least 1."""
    sampling: Sampling
    stop_tokens: frozenset[int]
    """Token ids that end the row (the model's end-of-text tokens)."""
    boundaries: tuple[int, ...] = ()
    """Lengths of the prompt's prefixes that others are likely to share, ascending."""
    client: str = ""
    """Whose it is; admission is fair between clients."""
    priority: Priority = "interactive"
    siblings: int = 0
    """What rows of one request that have the same prompt share, so that one reads it for all; 0 for none."""
