"""How faults of the device are told."""

import attrs


@attrs.frozen
class StepError:
    """A step failed, and with it all rows of the group, whose state is dropped."""

    rows: tuple[int, ...]
    error: str


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"
