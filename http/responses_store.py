"""Responses that are held in memory, so that later ones can go on from them."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import attrs

from motet.http.chat_request import Message

_OVERHEAD = 1024  # bytes that an entry costs besides its text


@attrs.frozen
class Held:
    """A response, and the conversation up to its end."""

    response: dict[str, Any]
    messages: Sequence[Message]

    @property
    def size(self) -> int:
        """About the bytes that it takes; earlier turns count in full, though they may be shared."""
        turns = sum(len(message.model_dump_json()) for message in self.messages)
        return _OVERHEAD + turns + len(json.dumps(self.response))


class ResponsesStore:
    """The latest used responses, as many as fit into ``ceiling`` bytes."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._bytes = 0
        self._held: OrderedDict[str, tuple[Held, int]] = OrderedDict()

    def put(self, held: Held) -> None:
        """Hold a response; those not used for longest give way."""
        size = held.size
        if size > self._ceiling:
            return
        self._held[held.response["id"]] = (held, size)
        self._bytes += size
        while self._bytes > self._ceiling:
            self.remove(next(iter(self._held)))

    def get(self, name: str) -> Held | None:
        """A response, if it is held."""
        found = self._held.get(name)
        if found is None:
            return None
        self._held.move_to_end(name)
        return found[0]

    def remove(self, name: str) -> bool:
        """Forget a response; false if it was not held."""
        found = self._held.pop(name, None)
        if found is not None:
            self._bytes -= found[1]
        return found is not None

    def statistics(self) -> dict[str, int]:
        """How much is held."""
        return {"entries": len(self._held), "bytes": self._bytes, "ceiling_bytes": self._ceiling}
