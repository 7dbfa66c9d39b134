"""What models write to call tools, a sample for each of mlx-lm's parsers, and the tools that they call."""

from typing import Any

import attrs

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": properties},
        },
    }
    for name, properties in (
        ("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}}),
        ("search", {"query": {"type": "string"}, "options": {"type": "object"}}),
    )
]

WEATHER: dict[str, Any] = {"city": "Zürich 🎉", "days": 3}
SEARCH: dict[str, Any] = {"query": "日本 & <b>", "options": {"deep": [1, None, True]}}


@attrs.frozen
class Sample:
    """A reply that calls: sections, each between the markers, and what they call."""

    sections: tuple[str, ...]
    calls: tuple[tuple[str, dict[str, Any]], ...] = (("get_weather", WEATHER), ("search", SEARCH))
    special: tuple[str, ...] = ()
    """What of it are special tokens, beside the markers."""
    grows: bool = False
    """Whether its arguments are told as they grow."""


_S = '<|"|>'
_ARGUMENTS = (
    '{"city": "Zürich 🎉", "days": 3}',
    '{"query": "日本 & <b>", "options": {"deep": [1, null, true]}}',
)


def _arg(tag: str, key: str, value: str) -> str:
    return f"<{tag}_key>{key}</{tag}_key>\n<{tag}_value>{value}</{tag}_value>\n"


def _xml(key: str, value: str, kind: str) -> str:
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


_KIMI3 = ("<|open|>", "<|close|>", "<|sep|>")
_DEEP = '{"deep": [1, null, true]}'
_GLM = (
    "get_weather\n" + _arg("arg", "city", "Zürich 🎉") + _arg("arg", "days", "3"),
    "search\n" + _arg("arg", "query", "日本 & <b>") + _arg("arg", "options", _DEEP),
)

SAMPLES: dict[str, Sample] = {
    "json_tools": Sample(
        (
            f'\n{{"name": "get_weather", "arguments": {_ARGUMENTS[0]}}}\n',
            f'\n{{"name": "search", "arguments": {_ARGUMENTS[1]}}}\n',
        ),
        grows=True,
    ),
    "mistral": Sample((f"get_weather[ARGS]{_ARGUMENTS[0]}search[ARGS]{_ARGUMENTS[1]}",), grows=True),
    "kimi_k2": Sample(
        (
            "".join(
                f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_ARGUMENTS[i]}"
                "<|tool_call_end|>"
                for i, name in enumerate(("get_weather", "search"))
            ),
        ),
        special=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        grows=True,
    ),
    "kimi_k3": Sample(
        (
            '<|open|>call tool="get_weather" index="1"<|sep|>'
            + _xml("city", "Zürich 🎉", "string")
            + _xml("days", "3", "number")
            + "<|close|>call<|sep|>"
            + '<|open|>call tool="search" index="2"<|sep|>'
            + f'<|open|>json type="object"<|sep|>{_ARGUMENTS[1]}<|close|>json<|sep|><|close|>call<|sep|>',
        ),
        special=_KIMI3,
    ),
    "longcat": Sample(
        (
            "get_weather\n" + _arg("longcat_arg", "city", "Zürich 🎉") + _arg("longcat_arg", "days", "3"),
            f'{{"name": "search", "arguments": {_ARGUMENTS[1]}}}',
        ),
    ),
    "glm47": Sample(_GLM),
    "laguna": Sample(_GLM),
    "pythonic": Sample(
        (
            "[get_weather(city='Zürich 🎉', days=3), "
            "search(query=\"日本 & <b>\", options={'deep': [1, None, True]})]",
        )
    ),
    "qwen3_coder": Sample(
        (
            "\n<function=get_weather>\n<parameter=city>\nZürich 🎉\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>",
            "\n<function=search>\n<parameter=query>\n日本 & <b>\n</parameter>\n"
            f"<parameter=options>\n{_DEEP}\n</parameter>\n</function>",
        )
    ),
    "gemma4": Sample(
        (
            f"call:get_weather{{city:{_S}Zürich 🎉{_S},days:3}}",
            f"call:search{{query:{_S}日本 & <b>{_S},options:{{deep:[1,null,true]}}}}",
        ),
        special=(_S,),
    ),
    "function_gemma": Sample(
        (
            "call:get_weather{city:<escape>Zürich 🎉<escape>,days:3}",
            "call:search{query:<escape>日本 & <b><escape>}",
        ),
        calls=(("get_weather", WEATHER), ("search", {"query": SEARCH["query"]})),
        special=("<escape>",),
    ),
    "minimax_m2": Sample(
        (
            '\n<invoke name="get_weather">\n<parameter name="city">Zürich 🎉</parameter>\n'
            '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="search">\n'
            f'<parameter name="query">日本 & <b></parameter>\n<parameter name="options">{_DEEP}</parameter>'
            "\n</invoke>\n",
        )
    ),
    "minicpm5": Sample(
        (
            '"get_weather"><param name="city">Zürich 🎉</param><param name="days">3</param>',
            '"search"><param name="query"><![CDATA[日本 & <b>]]></param>'
            f'<param name="options">{_DEEP}</param>',
        )
    ),
    "muse_spark": Sample(
        (
            '\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Zürich 🎉</atem:parameter>\n'
            '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n'
            '<atem:invoke name="search">\n<atem:parameter name="query">日本 & <b></atem:parameter>\n'
            f'<atem:parameter name="options">{_DEEP}</atem:parameter>\n</atem:invoke>\n',
        )
    ),
}
