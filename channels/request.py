"""What a caller asks for, once it is tokenized: plain values that travel with the row."""

import attrs


@attrs.frozen
class Sampling:
    """How the next token is drawn.

    ``temperature`` 0 is greedy. ``top_p`` in (0, 1], 1 is off. ``top_k`` 0 is off. ``min_p`` in
    [0, 1], 0 is off. ``seed`` and the sample's index alone pick the random key.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


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
