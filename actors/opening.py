"""From what a caller asks for to the engine's row."""

import attrs

from motet.channels.device import Opening
from motet.channels.request import Work
from motet.engine.constraints.constraint import Grammars
from motet.engine.row import Row
from motet.engine.session import SamplingSession


def open_row(opening: Opening, grammars: Grammars | None) -> Row:
    """A row as it begins, or begins again. A grammar has been checked by ``grammars`` before."""
    work, generated = opening.work, opening.generated
    row = Row(
        work.row,
        opening.length,
        sampling_session(work, generated),
        work.stop_tokens,
        work.limit,
        made=len(generated),
    )
    if work.sampling.grammar is not None:
        assert grammars is not None
        row.constraint = grammars.constraint(work.sampling.grammar, generated)
    return row


def sampling_session(work: Work, generated: tuple[int, ...]) -> SamplingSession:
    """A row's session: new, or, with the tokens ``generated`` before, where it was."""
    settings = attrs.asdict(work.sampling, filter=lambda field, _: field.name != "grammar")
    whole = len(work.prompt) + work.limit
    context = work.sampling.repetition_context
    # As in mlx-lm 0 is everything; more than there will be is no more.
    settings["repetition_context"] = min(context, whole) if context else whole
    return SamplingSession(**settings, prompt=work.prompt, generated=list(generated), drawn=len(generated))
