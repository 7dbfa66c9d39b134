"""Tools for a model whose chat template knows none: told in the system prompt, in the most common form.

A call is one JSON object between two markers, which mlx-lm's ``json_tools`` parser reads (the form of Hermes
and Qwen, https://github.com/NousResearch/Hermes-Function-Calling). Earlier calls and their results are
written into the messages in the same form, for such a template would drop them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm.tool_parsers import json_tools

_SAMPLE = [{"role": "user", "content": "0"}]
_TOOL = {"type": "function", "function": {"name": "f", "description": "g", "parameters": {}}}

_HEAD = (
    "You may call functions to help with the user's request. These are the functions, each as a JSON object "
    "on a line of its own:\n<tools>\n"
)
_TAIL = (
    "\n</tools>\nTo call a function, answer with nothing but its name and arguments as a JSON object, so:\n"
    f'{json_tools.tool_call_start}\n{{"name": "the name", "arguments": {{}}}}\n{json_tools.tool_call_end}'
)


def template_takes_tools(tokenizer: Any) -> bool:
    """Whether a tokenizer's chat template does anything with tools."""
    if tokenizer.has_tool_calling:
        return True
    try:
        with_tools = tokenizer.apply_chat_template(_SAMPLE, tools=[_TOOL], add_generation_prompt=True)
        return list(with_tools) != list(tokenizer.apply_chat_template(_SAMPLE, add_generation_prompt=True))
    except Exception:  # templates raise what they like
        return True


def told_of_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A chat's messages with the tools, the calls and the results in their text."""
    told = [_written(message) for message in messages]
    if not tools:
        return told
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    system = _HEAD + functions + _TAIL
    if told and told[0].get("role") in {"system", "developer"}:
        return [{**told[0], "content": f"{told[0]['content']}\n\n{system}"}, *told[1:]]
    return [{"role": "system", "content": system}, *told]


def _written(message: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(message)
    if message.get("role") == "tool":
        # Templates that know no tools may know no such role.
        content = f"<tool_response>\n{message.get('content')}\n</tool_response>"
        return {"role": "user", "content": content}
    calls = written.pop("tool_calls", None) or ()
    lines = [written.get("content") or "", *map(_call, calls)]
    written["content"] = "\n".join(line for line in lines if line)
    return written


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    said = json.dumps(
        {"name": function["name"], "arguments": function.get("arguments") or {}}, ensure_ascii=False
    )
    return f"{json_tools.tool_call_start}\n{said}\n{json_tools.tool_call_end}"
