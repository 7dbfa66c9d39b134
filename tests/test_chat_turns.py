"""A chat, turn by turn: what is read of each prompt is what was never read before.

New is what follows the longest beginning that a prompt shares with what the model has held before: an earlier
prompt with its reply. A template that writes a reply otherwise than it was made makes that much of it new.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import attrs
import httpx
import pytest
import trio.testing

import families
import motet
import written_model
from motet.actors.intake import Intake
from motet.actors.prefixes import common_prefix
from motet.actors.system import Settings, open_system
from motet.engine import default_model, model
from motet.http.app import make_app
from scripted import scripted_system
from tool_samples import TOOLS
from written_model import Script, thinking_tokenizer

FULL, ROTATING, RECURRENT = "llama", "gemma3_text", "qwen3_5"
TURNS = 10
SYSTEM = {"role": "system", "content": "be brief and kind " * 5}


@attrs.define
class Chat:
    """A client's side of a chat: what is said is sent back as it came."""

    client: httpx.AsyncClient
    script: Script
    fields: dict[str, Any]
    messages: list[Any] = attrs.Factory(lambda: [SYSTEM])
    held: list[tuple[int, ...]] = attrs.Factory(list)
    """What the model has held: prompts with their replies."""
    table: list[tuple[int, int, int, int]] = attrs.Factory(list)
    """Of each request: tokens of its prompt, cached, computed, new."""

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one more message; return the reply."""
        self.messages.append(message)
        body = {"model": "tiny", "messages": self.messages, "max_tokens": 200, **self.fields}
        answer = (await self.client.post("/v1/chat/completions", json=body)).json()
        usage = answer["usage"]
        prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        assert len(self.script.prompt) == prompt and self.script.computed == prompt - cached
        shared = max((common_prefix(self.script.prompt, held) for held in self.held), default=0)
        self.table.append((prompt, cached, self.script.computed, prompt - shared))
        # The token that ended the reply has not always been fed.
        self.held.append(self.script.prompt + self.script.reply[:-1])
        self.messages.append(answer["choices"][0]["message"])
        return self.messages[-1]  # type: ignore[no-any-return]

    def show(self, title: str) -> None:
        """Print the table."""
        print(f"\n{title}: request, prompt, cached, computed, new")
        for i, row in enumerate(self.table):
            print("{:8} {:7} {:7} {:9} {:4}".format(i + 1, *row))


@contextlib.asynccontextmanager
async def chatting(family: str, **fields: Any) -> AsyncIterator[Chat]:
    script = Script(thinking_tokenizer())
    load = written_model.loader(family, script)
    async with open_system(load, Settings(), log_command=script.log) as engine:
        transport = httpx.ASGITransport(make_app(engine, "tiny"))
        async with httpx.AsyncClient(transport=transport, base_url="http://motet") as client:
            yield Chat(client, script, fields)


def reads_only_what_is_new(chat: Chat, family: str) -> bool:
    """From the second request on; the end of the reply before may have been fed.

    Where caches cannot be cut, a reply that is rewritten is gone on from before its header's last token: in
    the prompt before that was the last, and so read behind the snapshot.
    """
    most = 0 if family == FULL else 1
    return all(new - 1 <= computed <= new + most for _, _, computed, new in chat.table[1:])


@pytest.mark.parametrize("family", [FULL, ROTATING, RECURRENT])
async def test_ten_turns_of_a_chat(family: str) -> None:
    async with chatting(family) as chat:
        for turn in range(TURNS):
            chat.script.say(f"answer {turn}, a lazy dog")
            reply = await chat.ask({"role": "user", "content": f"question {turn}: what jumps over?"})
            assert reply["content"] == f"answer {turn}, a lazy dog"
    chat.show(f"ten turns, {family}")
    assert reads_only_what_is_new(chat, family)
    assert max(new for *_, new in chat.table[1:]) < 40  # a question and no reply


@pytest.mark.parametrize(
    ("turns", "thinks"),
    [(3, False), *(pytest.param(TURNS, thinks, marks=pytest.mark.slow) for thinks in (False, True))],
)
@pytest.mark.parametrize("family", [FULL, ROTATING, RECURRENT])
async def test_turns_with_thinking_and_tools(family: str, turns: int, thinks: bool) -> None:
    """Each turn thinks and calls, hears the tool, thinks and answers. Then its thoughts are left out."""
    opening = "" if thinks else "<think>\n"
    async with chatting(family, tools=TOOLS, chat_template_kwargs={"thinks": thinks}) as chat:
        for turn in range(turns):
            call = f'<tool_call>\n{{"name": "search", "arguments": {{"query": "fox {turn}"}}}}\n</tool_call>'
            chat.script.say(f"{opening}I must look for {turn}\n</think>\n\n{call}")
            reply = await chat.ask({"role": "user", "content": f"question {turn}"})
            assert reply["reasoning_content"] == f"I must look for {turn}"
            called = reply["tool_calls"][0]
            chat.script.say(f"{opening}So it is {turn}\n</think>\n\nIt is {turn}, a quick brown fox")
            found = {"role": "tool", "tool_call_id": called["id"], "content": f"found {turn}"}
            reply = await chat.ask(found)
            assert (reply["reasoning_content"], reply["content"]) == (
                f"So it is {turn}", f"It is {turn}, a quick brown fox",
            )  # fmt: skip
    chat.show(
        f"{turns} turns with thinking (opened by the {'prompt' if thinks else 'reply'}) and tools, {family}"
    )
    assert reads_only_what_is_new(chat, family)
    calls, rest = chat.table[2::2], chat.table[1::2]
    assert max(new for *_, new in rest) < 64  # what the tool said, and no thought or call
    # The turn before without its thoughts, and the next question: as many in each.
    assert max(new for *_, new in calls) - min(new for *_, new in calls) <= 2


@pytest.mark.parametrize("family", [FULL, ROTATING, RECURRENT])
async def test_replies_that_come_back_as_other_tokens(family: str) -> None:
    """Random text is not cut as it was made: where caches cannot be cut, the reply is read again."""
    async with chatting(family) as chat:
        chat.fields = {"temperature": 1, "seed": 5, "max_tokens": 20}
        for turn in range(4):
            await chat.ask({"role": "user", "content": f"question {turn}: what jumps over?"})
    chat.show(f"random replies, {family}")
    # Without its reply nothing is shared but the prompt before it: so ``new`` has the reply in it.
    assert all(computed <= new + (family != FULL) for _, _, computed, new in chat.table[1:])


async def test_cached_tokens_are_what_was_taken_also_of_a_row_that_was_recovered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not what its second reading took."""
    prompt = families.prompts((40,))[0]
    async with scripted_system() as system:
        async with system.engine.generate(prompt[:30], max_tokens=1) as stream:
            async for _ in stream:
                pass
        async with system.engine.generate(prompt, max_tokens=9) as stream:
            events = [await anext(stream)]
            system.device.faults.step = 1
            events += [event async for event in stream]
        assert system.engine.gauges.decode.recovered_rows == 1
        assert isinstance(events[-1], motet.Finished)
        usage = events[-1].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 30, 9)


@pytest.mark.parametrize("thinks", [False, True])
def test_the_checkpoint_is_where_every_reply_begins(thinks: bool) -> None:
    """Behind the reply's header, before what the prompt itself opens of the thoughts."""
    tokenizer = thinking_tokenizer()
    intake = Intake(tokenizer, families.VOCABULARY, None, cuts=False)
    read = intake.read(
        [SYSTEM, {"role": "user", "content": "a fox"}], "messages", template={"thinks": thinks}
    )
    (boundary,) = read.boundaries
    left = tokenizer.decode(list(read.tokens[boundary:]))
    assert left == ("<think>\n" if thinks else "\n")  # the last token is always read by itself


def test_while_tools_answer_their_turns_have_checkpoints_too() -> None:
    tokenizer = thinking_tokenizer()
    intake = Intake(tokenizer, families.VOCABULARY, None, cuts=False)
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    chat = [
        SYSTEM,
        {"role": "user", "content": "a fox"},
        {"role": "assistant", "reasoning_content": "Hm", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    tokens, boundaries = attrs.astuple(intake.read(chat, "messages"))
    user, tool = (tokenizer.decode(list(tokens[:boundary])) for boundary in boundaries)
    assert user.endswith("a fox<|end|>\n<|start|>assistant\n")
    assert tool.endswith("found\n</tool_response><|end|>\n")


def test_a_short_chat_leaves_none() -> None:
    """To read it again costs hardly more than a forward."""
    intake = Intake(thinking_tokenizer(), families.VOCABULARY, None, cuts=False)
    assert intake.read([{"role": "user", "content": "a fox"}], "messages").boundaries == ()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_turns_with_the_real_model() -> None:
    """SmolLM2's own replies."""
    directory = os.fspath(default_model.directory())
    table = []
    async with open_system(lambda: model.load(directory), Settings()) as engine:
        transport = httpx.ASGITransport(make_app(engine, "smollm2"))
        async with httpx.AsyncClient(transport=transport, base_url="http://motet", timeout=300) as client:
            messages: list[Any] = []
            for turn in range(TURNS):
                messages.append(
                    {"role": "user", "content": f"Tell me of a city, number {turn}, in a sentence."}
                )
                body = {"model": "smollm2", "messages": messages, "max_tokens": 40}
                answer = (await client.post("/v1/chat/completions", json=body)).json()
                usage = answer["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                table.append((usage["prompt_tokens"], cached, usage["completion_tokens"]))
                messages.append(answer["choices"][0]["message"])
    print("\nSmolLM2: request, prompt, cached, computed, new")
    held = 0
    for i, (prompt, cached, completion) in enumerate(table):
        print(f"{i + 1:8} {prompt:7} {cached:7} {prompt - cached:9} {prompt - held:4}")
        # At most two fewer held: a reply's last token, of which the text may be cut otherwise.
        assert i == 0 or prompt - held - 1 <= prompt - cached <= prompt - held + 2
        held = prompt + completion
