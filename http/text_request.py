"""The body of POST /v1/completions.

https://platform.openai.com/docs/api-reference/completions/create
"""

from typing import Annotated

from annotated_types import Ge, Le
from pydantic import Field

from motet import Request
from motet.http.generation import Generation, NonEmpty, refuse_unsupported

Ids = Annotated[list[int], Field(fail_fast=True, min_length=1)]
Prompt = (
    NonEmpty
    | Ids
    | Annotated[list[NonEmpty], Field(fail_fast=True, min_length=1, max_length=64)]
    | Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=64)]
)


class TextRequest(Generation):
    """A text completion: one row a prompt."""

    prompt: Prompt
    """Text, token ids, or a list of either."""
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Ge(1), Le(8)] | None = None
    logprobs: Annotated[int, Ge(0), Le(20)] | None = None

    def requests(self, client: str) -> list[Request]:
        """Its rows: ``n`` of the first prompt, then those of the next."""
        refuse_unsupported(self)
        options = self.options()
        if self.logprobs is not None:
            options["logprobs"] = self.logprobs
        return [
            row
            for prompt in self._prompts()
            for row in self.copies(Request(prompt, **options, param="prompt", client=client))
        ]

    def _prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt
