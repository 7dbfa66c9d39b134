"""How prompts are read: what the model allows, and what the settings say."""

import attrs

from motet.channels.namespace import UNNAMED, Namespace


@attrs.frozen
class Pace:
    """How prompts are cut into chunks."""

    stall: float
    """Seconds that a chunk may take while rows run or wait."""
    largest: int
    """Most tokens of a chunk."""
    forward_seconds: float
    """A forward of one token."""
    shape_seconds: float
    """What it adds to a chunk that no chunk before it had its shape, as most have not."""
    token_seconds: float
    """The first estimate of what each more token adds."""
    fixed: bool
    """Chunks end at multiples of ``largest``, whatever the load, and hits are used only there."""
    joiners: int
    """Prompts that are read by turns at most; more wait for one to be done."""
    together: bool
    """Whether the model can read several prompts in one forward."""
    padded: bool
    """Whether it can read unlike numbers of tokens of each."""
    keeps: bool
    """Whether snapshots can be kept."""
    cuts: bool
    """Whether a snapshot serves shorter prefixes too."""
    namespace: Namespace = UNNAMED
    """In which rows look for prefixes."""
