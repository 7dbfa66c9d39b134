"""What to generate, as a caller says it."""

from collections.abc import Mapping
from typing import Any

import attrs

from motet.actors.intake import Prompt
from motet.channels.request import Priority, Sampling
from motet.engine.defaults import SamplingDefaults

MOST_ROWS = 8
"""Rows of one request at most."""


@attrs.frozen
class Request:
    """What to generate. Sampling values are checked when the row is opened.

    Args:
        prompt: text or token ids to continue, or a chat's messages.
        max_tokens: most tokens to generate; None for the engine's default. Never more than the
            context has room for.
        temperature: 0 is greedy. None here and for the next four: what the model's generation_config.json
            says, or else 0, and the others off.
        top_p, top_k, min_p: filters; 1, 0 and 0 are off.
        repetition_penalty: for tokens among the last ``repetition_context``, the prompt's too, or among all
            if that is 0; 1 is off.
        seed: makes sampling repeatable.
        stop: strings that end the text, which is cut before them.
        param: the field that the prompt came in, for errors.
        xtc_probability, xtc_threshold: exclude top choices; probability 0 is off.
        presence_penalty, frequency_penalty: for tokens generated before, once and by count; 0 is off.
        logit_bias: what is added to these tokens' logits.
        logprobs: None, or how many of the likeliest tokens to tell beside each token's log-probability.
        grammar: what the text must match: see ``motet.grammar``. With tools the reply may be calls instead.
        grammar_param: the field that the grammar came in, for errors.
        tools: what a chat's reply may call, in OpenAI's form; with none, what looks like a call is text.
        must_call: whether the reply must be calls of these, or the name of the one it must call; if so, the
            grammar does not count.
        parallel_tool_calls: false if the reply ends with its first call.
        template: more values for the chat's template.
        client: whose the request is; priority: 'interactive' or 'background'.
        n: rows to generate, MOST_ROWS at most. The prompt is read once. Row i draws with ``seed`` + i, and is
            the row that a request of its own with that seed would be.
    """

    prompt: Prompt
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    param: str = "prompt"
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float | None = None
    repetition_context: int = 20
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = attrs.Factory(dict)
    logprobs: int | None = None
    grammar: str | None = None
    grammar_param: str = "grammar"
    tools: tuple[Mapping[str, Any], ...] = ()
    must_call: bool | str = False
    parallel_tool_calls: bool = True
    template: Mapping[str, Any] = attrs.Factory(dict)
    client: str = ""
    priority: Priority = "interactive"
    n: int = 1

    def sampling(
        self, seed: int, grammar: str | None, defaults: SamplingDefaults, special: tuple[int, ...]
    ) -> Sampling:
        """How to draw.

        Args:
            seed: the one that was asked for or drawn.
            grammar: what the text must match, its thinking and calls considered.
            defaults: the model's.
            special: tokens that XTC never excludes.
        """
        asked = {field: getattr(self, field) for field in attrs.fields_dict(SamplingDefaults)}
        chosen = attrs.asdict(defaults) | {field: v for field, v in asked.items() if v is not None}
        return Sampling(
            **chosen,
            seed=seed,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            xtc_special=special if self.xtc_probability else (),
            repetition_context=self.repetition_context,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple(sorted(self.logit_bias.items())),
            logprobs=self.logprobs,
            grammar=grammar,
        )
