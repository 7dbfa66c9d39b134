"""To the prefill cohort: from admission, from the store, from the device.

Credits: two messages a seat from admission, one Lease a seat, one device reply outstanding and one
Abandoned a seat.
"""

import attrs

from motet.channels.device import Abandoned, Chunked
from motet.channels.emitter import ToEmitter
from motet.channels.mailbox import Outlet
from motet.channels.request import Work


@attrs.frozen
class Admit:
    """A row to prepare. It holds a seat until its Withdraw has passed."""

    work: Work
    outlet: Outlet[ToEmitter]


@attrs.frozen
class Withdraw:
    """The caller has left: let the row go if it is here, and pass this on."""

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


ToPrefill = Admit | Withdraw | Lease | Cutoff | Closing | Chunked | Abandoned
