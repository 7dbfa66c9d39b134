"""The tiny tokenizer with markers of thinking and of tool calls, and a template that writes both."""

import functools

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

import families

TEMPLATE = (
    "{% if tools %}<|start|>tools\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}{{ '\n' }}"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
    "<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n"
    "<think>\n{% if not enable_thinking %}{{ '\n' }}</think>\n\n{% endif %}{% endif %}"
)


@functools.cache
def tool_tokenizer() -> TokenizerWrapper:
    """As Qwen's: the markers are tokens, and not special."""
    backend = Tokenizer.from_str(families.tokenizer()._tokenizer.backend_tokenizer.to_str())
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    fast.add_tokens(
        [
            AddedToken(marker, special=False)
            for marker in ("<think>", "</think>", "<tool_call>", "</tool_call>")
        ]
    )
    fast.chat_template = TEMPLATE
    return TokenizerWrapper(
        fast,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )
