"""The fields that all ways to ask for text share, and what is not served or has no effect."""

from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len, MinLen
from pydantic import BaseModel, Field

from motet import InvalidRequest, grammar
from motet.actors.request import MOST_ROWS
from motet.http.resuming import Resume
from motet.http.schema import Body

IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields of OpenAI's API that are accepted, checked, and without effect on what is generated here."""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "suffix": ("",),
    "web_search_options": (),
}
"""Fields that are known but not served (yet), each with the values that ask for nothing."""

TokenCount = Annotated[int, Ge(1), Le(1 << 31)]
Probability = Annotated[float, Ge(0), Le(1)]
Penalty = Annotated[float, Ge(-2), Le(2)]
NonEmpty = Annotated[str, MinLen(1)]
TokenId = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Metadata = Annotated[dict[Annotated[str, Len(0, 64)], Annotated[str, Len(0, 512)]], Len(0, 16)]


class StreamOptions(Body):
    include_usage: bool | None = None
    """Whether the stream's last chunk has the usage."""
    include_obfuscation: bool | None = None
    """Without effect: streams are never padded."""


class TextGrammar(Body):
    """What the whole text must match."""

    type: Literal["regex", "lark"]
    """A regular expression as Rust's regex crate knows it, or llguidance's variant of Lark's notation."""
    value: NonEmpty

    def serialized(self) -> str:
        """As ``motet.Request`` takes it."""
        return grammar.regex(self.value) if self.type == "regex" else grammar.lark(self.value)


class Generation(Body):
    """What chat and text completions share."""

    model: str
    """The id at /v1/models, its last path part, or 'default_model'."""
    max_tokens: TokenCount | None = None
    """Tokens to generate at most."""
    temperature: Annotated[float, Ge(0), Le(2)] | None = None
    """0 is greedy. The default of this and the next three is the model's, see docs/sampling.md."""
    top_p: Annotated[float, Ge(0), Le(1)] | None = None
    top_k: Annotated[int, Ge(0), Le(1 << 31)] | None = None
    """0 is off."""
    min_p: Probability | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Ge(0), Le(0.5)] | None = None
    repetition_penalty: Annotated[float, Ge(0.01), Le(100)] | None = None
    """1 is off."""
    repetition_context_size: Annotated[int, Ge(0), Le(1 << 31)] | None = None
    """Tokens that the repetition penalty looks back; 0 for all. The default is 20."""
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[TokenId, Annotated[float, Ge(-100), Le(100)]] | None = None
    seed: Annotated[int, Ge(0), Le((1 << 63) - 1)] | None = None
    """With the sample's index it alone picks the random numbers."""
    stop: NonEmpty | Annotated[list[NonEmpty], Len(0, 16)] | None = None
    n: Annotated[int, Ge(1), Le(MOST_ROWS)] | None = None
    """Answers to give: the i-th, from 0, is that of a request of its own with ``seed`` + i."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Literal["interactive", "background"] | None = None
    """Who waits for whom; interactive is the default."""
    grammar: TextGrammar | None = None
    """An extension: a form of the text for which there is no ``response_format``."""
    user: str | None = None
    resumable: bool | None = None
    """Whether a stream that breaks can be taken up again. Its events then have ids."""
    resume: Resume | None = None
    """Take such a stream up: nothing is generated anew, and the other fields are without effect."""

    @property
    def include_usage(self) -> bool:
        """Whether the stream is to end with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self) -> dict[str, Any]:
        """The options of ``motet.Request`` that this asks for; what is left out has its default there."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop and tuple(self.stop)
        bias = self.logit_bias
        asked = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "xtc_probability": self.xtc_probability,
            "xtc_threshold": self.xtc_threshold,
            "repetition_penalty": self.repetition_penalty,
            "repetition_context": self.repetition_context_size,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": None if bias is None else {int(token): bias[token] for token in bias},
            "seed": self.seed,
            "stop": stop,
            "priority": self.priority,
            "n": self.n,
            "grammar": self.grammar and self.grammar.serialized(),
        }
        return {name: value for name, value in asked.items() if value is not None}


def refuse_unsupported(body: Body) -> None:
    """Refuse what is known but not served.

    Raises:
        InvalidRequest: such a field asks for something.
    """
    for name in body.model_fields_set & UNSUPPORTED.keys():
        value = plain(getattr(body, name))
        if value is not None and value not in UNSUPPORTED[name]:
            raise InvalidRequest(f"'{name}' is not supported with this value", name, "unsupported_parameter")


def plain(value: Any) -> Any:
    """A field's value as it stood in the body."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
