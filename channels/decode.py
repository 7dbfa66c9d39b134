"""To the decode stepper: from prefill, from emitters, from the device.

Credits: Join, Withdraw and Stop once a seat each; one Displace; Dropped once a seat; device replies are
bounded by the steps that decode has granted.
"""

import attrs

from motet.channels.device import Dropped, JoinFault, StepFault, Stepped
from motet.channels.emitter import Finish, ToEmitter, TokenLogprob
from motet.channels.mailbox import Outlet
from motet.channels.request import Work


@attrs.frozen
class Prepared:
    """A prepared row with its first token, or, if it was recovered, its next ones.

    With a ``finish`` they were its last, and the device has already dropped the row.
    """

    work: Work
    outlet: Outlet[ToEmitter]
    tokens: tuple[int, ...]
    finish: Finish | None
    logprobs: tuple[TokenLogprob, ...] = ()


@attrs.frozen
class Join:
    """Rows whose prompts ended together."""

    rows: tuple[Prepared, ...]


@attrs.frozen
class Convicted:
    """A row that was sent back failed alone where the step had failed: that fault is explained."""

    row: int


@attrs.frozen
class Withdraw:
    """The caller has left: let the row go if it runs here; this is the end of its way."""

    row: int


@attrs.frozen
class Displace:
    """Let the row go if it runs here, but keep its tokens: it will come again.

    Answered by admission.Displaced or admission.Kept.
    """

    row: int


@attrs.frozen
class Stop:
    """The emitter has seen a stop string, or has failed: the row needs no more tokens."""

    row: int


@attrs.frozen
class Cutoff:
    """End the rows that run with a Failed event."""


@attrs.frozen
class Closing:
    """Nothing more comes from prefill, and no row is left: leave."""


ToDecode = (
    Join
    | Convicted
    | Withdraw
    | Displace
    | Stop
    | Cutoff
    | Closing
    | Stepped
    | StepFault
    | JoinFault
    | Dropped
)
