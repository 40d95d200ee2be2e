"""`diptych chat` as a process: pipes, a terminal, signals and exit codes."""

import asyncio
import itertools
import json
import os
import pty
import re
import signal
import ssl
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from diptych.core.errors import BadRequest
from diptych.supervisor.folder import Lock, State
from diptych.testing.gateway import MODEL, ScriptedGateway, scripted_gateway
from diptych.testing.platform import environment
from diptych.text.markers import Marker

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
END, EOS = Marker.END_THINK, Marker.EOS
CHAT = (sys.executable, "-m", "diptych.cli", "chat")
LIMIT_S = 20


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(TINY) as running:
        running.says("Hm.", END, "One two three.", EOS)
        yield running


async def chat(*arguments: str, said: str | None = None, **variables: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *CHAT, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment() | variables
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate((said or "").encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_message_is_answered_in_plain_text(gateway: ScriptedGateway) -> None:
    done = await chat("Hello there", "--url", gateway.base_url)
    assert done == (0, "One two three.\n", "")
    assert "Hello there" in gateway.heard


async def test_a_pipe_is_the_message(gateway: ScriptedGateway) -> None:
    done = await chat("--url", f"{gateway.base_url}/v1/", said="From a\npipe\n")
    assert done == (0, "One two three.\n", "")
    assert "From a\npipe" in gateway.heard


async def test_options_reach_the_request(gateway: ScriptedGateway) -> None:
    flags = {
        "--temperature": "0.25", "--top-p": "0.5", "--max-tokens": "2", "--seed": "42",
        "--system": "Be brief.", "--model": MODEL,
    }  # fmt: skip
    given = itertools.chain.from_iterable(flags.items())
    code, out, _ = await chat("Hi", *given, "--no-thinking", DIPTYCH_URL=gateway.base_url)
    assert code == 0
    generation = gateway.hops.generations[-1]
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.25, 0.5, 42)
    assert generation.max_new == 2
    assert gateway.heard.startswith("Be brief.")
    assert not gateway.is_to_think
    assert "Hm".startswith(out.strip())


@pytest.mark.parametrize("effort", ["30", "low"])
async def test_effort_is_a_number_or_a_word(gateway: ScriptedGateway, effort: str) -> None:
    code, _, _ = await chat("Hi", "--url", gateway.base_url, "--effort", effort)
    assert code == 0
    assert {"30": "30", "low": "50"}[effort] in gateway.heard


async def test_json_tells_everything(gateway: ScriptedGateway) -> None:
    code, out, _ = await chat("Hi", "--url", gateway.base_url, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["model"] == MODEL
    assert (told["reasoning_content"], told["content"]) == ("Hm.", "One two three.")
    assert told["finish_reason"] == "stop"
    assert told["usage"]["completion_tokens"] == len(gateway.hops.output.token_ids)


async def test_the_platform_on_the_data_folder_is_found(
    gateway: ScriptedGateway, tmp_path: Path
) -> None:
    nothing = await chat("Hi", DIPTYCH_DATA_DIR=str(tmp_path))
    words = f"diptych: nothing is running on {tmp_path}: start it with `diptych up`, or name a "
    assert nothing == (1, "", f"{words}gateway with --url\n")
    with Lock(tmp_path):
        State(os.getpid(), gateway.base_url, "127.0.0.1:1", MODEL, ()).write(tmp_path)
        assert (await chat("Hi", "--data-dir", str(tmp_path)))[:2] == (0, "One two three.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["Hi", "--url", "http://127.0.0.1:9"], 1, "cannot reach http://127.0.0.1:9"),
        (["Hi", "--url", "localhost:8000"], 2, "--url 'localhost:8000': expected http://"),
        (["Hi", "--url", "{url}", "--model", "nope"], 1, "[model_not_found]; request req_"),
        (["Hi", "--url", "{url}", "--effort", "much"], 1, "reasoning_effort: "),
        (["--url", "{url}"], 2, "nothing to say"),
    ],
)
async def test_what_goes_wrong_is_one_line_and_a_code(
    gateway: ScriptedGateway, arguments: list[str], code: int, words: str
) -> None:
    filled = [argument.format(url=gateway.base_url) for argument in arguments]
    done = await chat(*filled)
    assert done[:2] == (code, "")
    assert done[2].startswith("diptych: ")
    assert words in done[2]
    assert done[2].count("\n") == 1


async def test_a_broken_answer_is_printed_as_far_as_it_came(gateway: ScriptedGateway) -> None:
    gateway.says(END, "One two three four five six", EOS)
    gateway.hops.failures["token 6"].append(BadRequest("gone", code="odd"))
    code, out, err = await chat("Hi", "--url", gateway.base_url)
    assert code == 1
    assert out.endswith("\n")
    assert "One two three".startswith(out.strip())
    assert "gone [odd]" in err


@asynccontextmanager
async def refusing(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that refuses every key: its address, and the heads of requests it has heard."""
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
        error = {"error": {"message": "no", "code": "invalid_api_key", "request_id": "req_1"}}
        body = json.dumps(error)
        head = "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{'https' if context else 'http'}://{host}:{port}", heard


async def test_the_key_comes_from_the_environment_and_is_never_shown() -> None:
    async with refusing() as (url, heard):
        code, out, err = await chat("Hi", "--url", url, DIPTYCH_API_KEY="sk-secret")
    assert (code, out) == (1, "")
    hint = "give a key in DIPTYCH_API_KEY"
    assert err == f"diptych: no [invalid_api_key]; {hint}; request req_1\n"
    assert "authorization: Bearer sk-secret" in heard[0]


async def test_an_authority_of_ones_own_is_trusted_when_it_is_named(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with refusing(context) as (url, heard):
        assert "CERTIFICATE_VERIFY_FAILED" in (await chat("Hi", "--url", url))[2]
        assert heard == []
        done = await chat("Hi", "--url", url, SSL_CERT_FILE=str(tmp_path / "ca.pem"))
    assert "[invalid_api_key]" in done[2]


async def test_an_interrupt_stops_the_answer_and_leaves(gateway: ScriptedGateway) -> None:
    gateway.hops.holds = {"token 8"}
    process = await asyncio.create_subprocess_exec(
        *CHAT, "Hi", "--url", gateway.base_url, stdout=PIPE, stderr=PIPE, env=environment()
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        begun = await process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130
    assert "One two three.".startswith((begun + out).decode().strip())
    assert err == b""
    await gateway.hops.settled()
    assert gateway.hops.cancelled


async def test_a_reader_that_leaves_is_no_traceback(gateway: ScriptedGateway) -> None:
    gateway.hops.holds = {"token 8"}
    process = await asyncio.create_subprocess_exec(
        *CHAT, "Hi", "--url", gateway.base_url, stdout=PIPE, stderr=PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        await process.stdout.read(1)
        transport: Any = process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        transport.close()
        gateway.hops.release()
        assert await process.stderr.read() == b""
        assert await process.wait() == 141


class Terminal:
    """A person's end of a pseudo-terminal."""

    def __init__(self, process: Process, fd: int) -> None:
        self.process = process
        self._fd = fd
        self._seen = ""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is closed
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._seen += data.decode(errors="replace")
        self._news.set()

    async def shows(self, pattern: str) -> str:
        """Wait for a text; what came up to it is not looked at again."""
        while not (found := re.search(pattern, self._seen, re.DOTALL)):
            self._news.clear()
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._news.wait()
            except TimeoutError:
                raise AssertionError(f"no {pattern} in {self._seen!r}") from None
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def types(self, text: str) -> None:
        os.write(self._fd, text.encode())

    async def interrupts(self) -> None:
        """Ctrl-C once the prompt waits: readline looks at no signal between drawing and waiting."""
        async with asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(wait_asleep, self.process.pid)
        self.process.send_signal(signal.SIGINT)


def wait_asleep(pid: int) -> None:
    """Until the process waits for something."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


@asynccontextmanager
async def terminal(*arguments: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *CHAT,
        *arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment() | {"TERM": "xterm-256color", "COLUMNS": "80"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_a_person_talks_stops_an_answer_and_leaves(gateway: ScriptedGateway) -> None:
    async with terminal("--url", gateway.base_url) as person:
        await person.shows(rf"{MODEL} at {gateway.base_url} · /help.*> ")
        person.types("Hello\n")
        shown = await person.shows(r"prompt \d+.*tokens/s.*> ")
        assert re.search(r"\x1b\[2mH", shown)  # dim
        assert "One two three." in re.sub(r"\x1b\[[0-9;]*m", "", shown)
        gateway.hops.holds = {f"token {len(gateway.hops.output.token_ids) - 1}"}
        person.types("Again\n")
        await person.shows("One")
        person.process.send_signal(signal.SIGINT)
        await person.shows("stopped.*> ")
        await gateway.hops.settled()
        person.types("\x1b[A")  # the arrow up
        await person.shows("Again")
        gateway.hops.release()
        person.types("\n")
        await person.shows(r"three\..*> ")
        assert "Again" in gateway.heard
        await person.interrupts()
        await person.shows("once more leaves.*> ")
        await person.interrupts()
        async with asyncio.timeout(LIMIT_S):
            assert await person.process.wait() == 130


async def test_the_end_of_input_leaves_in_peace(gateway: ScriptedGateway) -> None:
    async with terminal("--url", gateway.base_url) as person:
        await person.shows("> ")
        person.types("\x04")
        async with asyncio.timeout(LIMIT_S):
            assert await person.process.wait() == 0
