"""Conversations with a real gateway over scripted engines."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from rich.console import Console

from diptych.core.errors import BadRequest, DiptychError, Lost, Overloaded
from diptych.terminal.gateway import Declined, Gateway, Wish
from diptych.terminal.screen import TerminalScreen
from diptych.terminal.session import DONE, INTERRUPTED, Conversation, Session
from diptych.testing.gateway import MODEL, ScriptedGateway, scripted_gateway
from diptych.text.markers import Marker

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
END, EOS = Marker.END_THINK, Marker.EOS
WISH = Wish(MODEL, thinking=False)

Typed = str | type[BaseException] | Callable[[], str]


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(TINY) as running:
        running.says("Hello.", EOS)
        yield running


class Person:
    """Types what is planned; an exception is a key that raises it."""

    def __init__(self, *typed: Typed) -> None:
        self._typed = iter(typed)
        self.prompts: list[str] = []

    def read_line(self, prompt: str) -> str:
        self.prompts.append(prompt)
        typed = next(self._typed)
        if isinstance(typed, str):
            return typed
        if isinstance(typed, type):
            raise typed
        return typed()


async def talk(gateway: ScriptedGateway, *typed: Typed, wish: Wish = WISH) -> tuple[int, str]:
    """Exit code, and all that was shown."""
    out = io.StringIO()
    console = Console(file=out, highlight=False)

    def run() -> int:
        with Gateway(gateway.base_url) as http:
            conversation = Conversation(http, wish, TerminalScreen(console))
            return Session(conversation, console, Person(*typed).read_line).run()

    return await asyncio.to_thread(run), out.getvalue()


async def test_turns_are_remembered_until_they_are_cleared(gateway: ScriptedGateway) -> None:
    def first_is_over() -> str:
        assert "One" in gateway.heard
        return "Two"

    code, shown = await talk(gateway, "One", first_is_over, "/clear", "Three", "/exit")
    assert code == DONE
    assert shown.count("Hello.") == 3
    assert "begins anew" in shown
    assert len(gateway.hops.wants) == 3
    assert "Three" in gateway.heard
    assert "One" not in gateway.heard


async def test_the_second_turn_tells_of_the_first(gateway: ScriptedGateway) -> None:
    gateway.says("Hm", END, "Sure.", EOS)
    await talk(gateway, "One", "Two", EOFError, wish=Wish(MODEL, thinking=True))
    parts = ["One", "Sure.", "Two"]
    assert sorted(parts, key=gateway.heard.index) == parts


async def test_the_system_prompt_can_be_set_and_removed(gateway: ScriptedGateway) -> None:
    def is_told() -> str:
        assert gateway.heard.startswith("Be brief.")
        return "/system"

    _, shown = await talk(gateway, "/system Be brief.", "Hi", is_told, "Ho", EOFError)
    assert "Be brief." not in gateway.heard
    assert "The system prompt is set." in shown
    assert "No system prompt." in shown


async def test_a_backslash_goes_on_in_the_next_line(gateway: ScriptedGateway) -> None:
    await talk(gateway, "One\\", "two", EOFError)
    assert "One\ntwo" in gateway.heard


async def test_what_is_no_command_is_said_to_be_none(gateway: ScriptedGateway) -> None:
    code, shown = await talk(gateway, "/nope", "", "/help", EOFError)
    assert code == DONE
    assert "/nope: no such command. /help names them." in shown
    assert "set the system prompt" in shown
    assert gateway.hops.wants == []


async def test_only_the_second_interrupt_in_a_row_leaves(gateway: ScriptedGateway) -> None:
    code, shown = await talk(
        gateway, KeyboardInterrupt, "Hi", KeyboardInterrupt, KeyboardInterrupt, "never"
    )
    assert code == INTERRUPTED
    assert shown.count("once more leaves") == 2
    assert "Hello." in shown


async def test_an_error_is_shown_and_the_conversation_goes_on_without_that_turn(
    gateway: ScriptedGateway,
) -> None:
    gateway.hops.failures["place"].append(Overloaded("no room", code="no_capacity"))
    code, shown = await talk(gateway, "One", "Two", EOFError)
    assert code == DONE
    assert "no room [no_capacity]; try again in" in shown
    assert "request req_" in shown
    assert "Two" in gateway.heard
    assert "One" not in gateway.heard


async def test_wishes_reach_the_request(gateway: ScriptedGateway) -> None:
    wish = Wish(MODEL, True, 30, temperature=0.25, top_p=0.5, max_tokens=7, seed=42)
    gateway.says("Hm", END, "Hi", EOS)
    await talk(gateway, "Hi", EOFError, wish=wish)
    generation = gateway.hops.generations[-1]
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.25, 0.5, 42)
    assert generation.max_new == 7
    assert gateway.is_to_think
    assert "30" in gateway.heard
    await talk(gateway, "Hi", EOFError, wish=Wish(MODEL, thinking=False))
    assert not gateway.is_to_think


async def refusal(base_url: str, wish: Wish = WISH) -> DiptychError:
    def run() -> None:
        with Gateway(base_url, "sk-x") as http:
            list(http.chat([{"role": "user", "content": "Hi"}], wish))

    with pytest.raises(DiptychError) as caught:
        await asyncio.to_thread(run)
    return caught.value


async def test_errors_name_code_and_request(gateway: ScriptedGateway) -> None:
    error = await refusal(gateway.base_url, Wish("nope"))
    assert isinstance(error, Declined)
    assert error.code == "model_not_found"
    assert "[model_not_found]; request req_" in error.message
    error = await refusal(gateway.base_url, Wish(MODEL, temperature=7))
    assert error.message.startswith("temperature: ")


async def test_an_error_within_the_answer_is_one(gateway: ScriptedGateway) -> None:
    gateway.says("An answer that breaks off", EOS)
    gateway.hops.failures["token 3"].append(BadRequest("gone", code="odd"))
    error = await refusal(gateway.base_url)
    assert isinstance(error, Declined)
    assert error.code == "odd"
    assert "request req_" in error.message


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\nnope", "no gateway of ours [502]"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n[]", "no gateway of ours [404]"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\ndata: {}\n\n: ", "ended too early"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ndata: {}\n\n", "broke"),
        (b"", "broke"),
    ],
)
async def test_what_is_no_whole_answer_is_never_taken_for_one(reply: bytes, words: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        error = await refusal(f"http://{host}:{port}")
    assert words in error.message


async def test_nobody_there_is_said_in_words() -> None:
    with Gateway("http://127.0.0.1:9") as http, pytest.raises(Lost, match="cannot reach"):
        http.model_name()


async def test_the_model_is_the_one_that_is_served(gateway: ScriptedGateway) -> None:
    def ask() -> str:
        with Gateway(gateway.base_url) as http:
            return http.model_name()

    assert await asyncio.to_thread(ask) == MODEL
