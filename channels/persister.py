"""To the SSD persister: from the store. One Load a seat."""

import attrs


@attrs.frozen
class Load:
    """Is there a file with a prefix of these tokens longer than ``beyond``? Answered by Loaded."""

    row: int
    prompt: tuple[int, ...]
    beyond: int


@attrs.frozen
class Closing:
    """The store has left."""


ToPersister = Load | Closing
