"""What an actor says, kept for a test to read."""

from typing import Any


class Heard(list[Any]):
    """An outlet that keeps what it is sent."""

    def send_nowait(self, value: Any, /) -> None:
        self.append(value)
