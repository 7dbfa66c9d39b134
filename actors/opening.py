"""From what a caller asks for to the engine's sampling session."""

import attrs

from motet.channels.request import Work
from motet.engine.session import SamplingSession


def sampling_session(work: Work, generated: tuple[int, ...]) -> SamplingSession:
    """A row's session: new, or, with the tokens ``generated`` before, where it was."""
    settings = attrs.asdict(work.sampling, filter=lambda field, _: field.name != "grammar")
    whole = len(work.prompt) + work.limit
    context = work.sampling.repetition_context
    # As in mlx-lm 0 is everything; more than there will be is no more.
    settings["repetition_context"] = min(context, whole) if context else whole
    return SamplingSession(**settings, prompt=work.prompt, generated=list(generated), drawn=len(generated))
