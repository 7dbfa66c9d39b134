"""Whose row is next: in order of arrival for each client, by turns between clients, interactive ones first.

Clients take turns by rows: a client with sixteen of them waiting and one with a single row are admitted
alternately. By rows and not by bytes, for a person with one long chat is to get the next turn too. A client
that comes anew has its turn behind those that wait.

Background rows come behind all interactive ones, but not for ever: when none of them lives and
BACKGROUND_EVERY interactive rows were admitted before them, the first of them is *due* and goes next.

Whoever is first stays first until it is admitted: a large row is passed by nobody of its priority, and by no
more interactive ones than that.
"""

from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from motet.channels.request import Priority

BACKGROUND_EVERY = 8
"""Interactive rows that are admitted before background work that waits, while none of that lives."""


class Queued(Protocol):
    """A row that waits."""

    @property
    def row(self) -> int:
        """Its number."""

    @property
    def client(self) -> str:
        """Whose it is."""

    @property
    def priority(self) -> Priority:
        """In which lane it waits."""


Q = TypeVar("Q", bound=Queued)


class _Lane(Generic[Q]):
    """The rows of one priority: a queue a client, the clients in the order of their turns."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Q]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def add(self, queued: Q) -> None:
        self._clients.setdefault(queued.client, deque()).append(queued)

    def put_back(self, queued: Q) -> None:
        self._clients.setdefault(queued.client, deque()).appendleft(queued)
        self._clients.move_to_end(queued.client, last=False)

    def first(self) -> Q | None:
        return next(iter(self._clients.values()))[0] if self._clients else None

    def take(self) -> None:
        client = next(iter(self._clients))
        self._clients[client].popleft()
        self._clients.move_to_end(client)
        self._forget_if_empty(client)

    def remove(self, queued: Q) -> None:
        self._clients[queued.client].remove(queued)
        self._forget_if_empty(queued.client)

    def _forget_if_empty(self, client: str) -> None:
        if not self._clients[client]:
            del self._clients[client]


class FairQueue(Generic[Q]):
    """The rows that wait. Knows nothing of places and bytes: who is first waits until there are some."""

    def __init__(self) -> None:
        self._lanes: dict[Priority, _Lane[Q]] = {"interactive": _Lane(), "background": _Lane()}
        self._rows: dict[int, Q] = {}
        self._passed = 0  # interactive rows admitted while background ones waited

    def __len__(self) -> int:
        return len(self._rows)

    def waiting(self, priority: Priority) -> int:
        """Rows of one priority."""
        return len(self._lanes[priority])

    def add(self, queued: Q) -> None:
        """A new row, behind the others of its client."""
        self._lanes[queued.priority].add(queued)
        self._rows[queued.row] = queued

    def put_back(self, queued: Q) -> None:
        """A row that was admitted and waits once more: before its client's others, its turn given back."""
        self._lanes[queued.priority].put_back(queued)
        self._rows[queued.row] = queued

    def remove(self, row: int) -> Q | None:
        """The row, which waits no longer; None if it did not."""
        queued = self._rows.pop(row, None)
        if queued is not None:
            self._lanes[queued.priority].remove(queued)
            self._passed *= bool(self._lanes["background"])
        return queued

    def due(self, *, background_lives: bool) -> bool:
        """Whether background work has been passed often enough."""
        waits = bool(self._lanes["background"])
        return waits and not background_lives and self._passed >= BACKGROUND_EVERY

    def first(self, *, background_lives: bool) -> Q | None:
        """Who is to be admitted next."""
        interactive, background = self._lanes["interactive"].first(), self._lanes["background"].first()
        if interactive is None or self.due(background_lives=background_lives):
            return background
        return interactive

    def take(self, first: Q) -> None:
        """The first of its priority is admitted: its client's next turn comes behind the others'."""
        assert first is self._lanes[first.priority].first()
        self._lanes[first.priority].take()
        del self._rows[first.row]
        passes = first.priority == "interactive" and bool(self._lanes["background"])
        self._passed = self._passed + 1 if passes else 0
