"""A tiny model whose greedy text is written beforehand, and a thinking model's template for its tokenizer."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools

import families
from motet.channels.device import Chunk, Command
from motet.engine.model import Model
from tool_tokenizer import tool_tokenizer

THINKING = (
    "{% if tools %}<|start|>tools\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% set seen = namespace(user=-1) %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}{% set seen.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}<|start|>{{ m.role }}\n"
    "{% if loop.index0 > seen.user and m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content.lstrip('\n') if m.role == 'assistant' else m.content }}"
    "{% for call in m.tool_calls %}{% if m.content %}{{ '\n' }}{% endif %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if thinks %}<think>\n{% endif %}{% endif %}"
)
"""As Qwen3's: what was thought before the user's last message is left out. ``thinks``: in the prompt the
reply's thinking is open."""


@functools.cache
def thinking_tokenizer() -> TokenizerWrapper:
    """The tiny tokenizer with that template."""
    fast = copy.deepcopy(tool_tokenizer()._tokenizer)
    fast.chat_template = THINKING
    return TokenizerWrapper(
        fast,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )


@attrs.define
class Script:
    """What the model is to say next, and what it was given to read."""

    tokenizer: Any
    reply: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    """Of the last request."""
    computed: int = 0
    """Tokens of it that went through the model."""

    def say(self, text: str) -> None:
        """The next reply."""
        self.reply = (*self.tokenizer.encode(text), *self.tokenizer.eos_token_ids)

    def log(self, command: Command) -> None:
        """See DeviceLoop."""
        if isinstance(command, Chunk):
            (part,) = command.parts
            if part.opening is not None:
                self.prompt, self.computed = part.opening.work.prompt, 0
            self.computed += len(part.tokens)


class Written:
    """The model: everything is computed as always, but for which token is likeliest."""

    def __init__(self, model: nn.Module, script: Script) -> None:
        self._model = model
        self._script = script

    def __call__(self, tokens: mx.array, cache: Sequence[Any], **options: Any) -> mx.array:
        held = next(leaf.offset for leaf in cache if hasattr(leaf, "offset"))
        logits: mx.array = self._model(tokens, cache=cache, **options)
        if not self._script.reply or tokens.shape[0] > 1:
            return logits
        place = held + tokens.shape[1] - len(self._script.prompt)
        token = self._script.reply[min(max(place, 0), len(self._script.reply) - 1)]
        return 0 * logits + 1e3 * (mx.arange(logits.shape[-1]) == token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def loader(family: str, script: Script) -> Callable[[], tuple[Model, Any]]:
    """What ``open_system`` takes."""

    def load() -> tuple[Model, Any]:
        module, config = families.build(family, vocabulary=len(script.tokenizer.get_vocab()))
        (config.get("text_config") or config).setdefault("max_position_embeddings", families.CONTEXT)
        return Model(Written(module, script), config, family), script.tokenizer  # type: ignore[arg-type]

    return load
