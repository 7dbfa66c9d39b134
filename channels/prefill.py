"""To the prefill cohort: from admission, from the store, from the device, and back from decode.

Credits: two messages a seat from admission and one Displace, one Lease a seat, one device reply outstanding
and one Abandoned a seat; from decode one Recover a fault, which the next waits for, and one Abandon a seat.
"""

import attrs

from motet.channels.device import Abandoned, Chunked
from motet.channels.emitter import ToEmitter
from motet.channels.mailbox import Outlet
from motet.channels.request import Work


@attrs.frozen
class Admit:
    """A row to prepare. It holds a seat until its Withdraw has passed.

    One that was displaced comes again, with the tokens that it had ``generated`` until then.
    """

    work: Work
    outlet: Outlet[ToEmitter]
    generated: tuple[int, ...] = ()


@attrs.frozen
class Displace:
    """Let the row go if it is here, or pass this on: it will be admitted again.

    Follows the row's Admit; answered by admission.Displaced or admission.Kept. One is out at a time.
    """

    row: int


@attrs.frozen
class Withdraw:
    """The caller has left: let the row go if it is here, and pass this on."""

    row: int


@attrs.frozen
class Recovering:
    """A row whose step failed: its state is lost, but not its tokens, the ``generated`` ones included."""

    work: Work
    outlet: Outlet[ToEmitter]
    generated: tuple[int, ...]


@attrs.frozen
class Recover:
    """Rows of a step that failed. They keep their seats and places, and are prepared anew.

    The step that failed is done again with each row's last token; a row that fails there alone is the
    guilty one (Convicted), the others join as they did before.
    """

    rows: tuple[Recovering, ...]


@attrs.frozen
class Abandon:
    """A Withdraw that met decode when its row had gone back: let the row go, and send Withdraw again."""

    row: int


@attrs.frozen
class Lease:
    """The store's answer to Take: a snapshot that holds the first ``length`` tokens, or none.

    The snapshot stays until ``ReleaseLease(row)``.
    """

    row: int
    snapshot: int | None
    length: int


@attrs.frozen
class Cutoff:
    """End the rows that are here with a Failed event, and pass this on."""


@attrs.frozen
class Closing:
    """Nothing more comes from admission, and no row is left: leave, telling those downstream."""


ToPrefill = Admit | Withdraw | Displace | Recover | Abandon | Lease | Cutoff | Closing | Chunked | Abandoned
