"""The body of POST /v1/completions.

https://platform.openai.com/docs/api-reference/completions/create
"""

from typing import Annotated

from annotated_types import Ge, Le
from pydantic import Field

from motet import InvalidRequest, Request
from motet.actors.request import MOST_ROWS
from motet.http.generation import Generation, NonEmpty, refuse_unsupported

Ids = Annotated[list[int], Field(fail_fast=True, min_length=1)]
Prompt = (
    NonEmpty
    | Ids
    | Annotated[list[NonEmpty], Field(fail_fast=True, min_length=1, max_length=64)]
    | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=64)]
)


class TextRequest(Generation):
    """A text completion."""

    prompt: Prompt
    """Text, token ids, or a list of either."""
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Ge(1), Le(MOST_ROWS)] | None = None
    """As many as ``n``: all that are made are given."""
    logprobs: Annotated[int, Ge(0), Le(20)] | None = None

    def requests(self, client: str) -> list[Request]:
        """One a prompt."""
        refuse_unsupported(self)
        if self.best_of not in {None, self.n or 1}:
            raise InvalidRequest("'best_of' must be 'n'", "best_of", "unsupported_parameter")
        options = self.options()
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
        return [Request(prompt, **options, param="prompt", client=client) for prompt in self._prompts()]

    def _prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt
