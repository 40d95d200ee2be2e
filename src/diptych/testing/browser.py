"""Headless Chromium for tests, spoken to in the DevTools protocol over a pipe.

No port, no driver and no library: messages are JSON, each ended by a NUL byte.
"""

import asyncio
import base64
import fcntl
import itertools
import json
import os
import shutil
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INSTALL = "chromium is not installed; these tests need it: apt-get install chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--disable-extensions", "--mute-audio", "--remote-debugging-pipe",
)  # fmt: skip
REPLY_S = 10.0
LEAVE_S = 5.0
MAX_MESSAGE_BYTES = 64 << 20
FAR_FD = 20  # above those the shell hands on
# Chromium reads commands from 3 and writes to 4.
SHELL = 'from=$1 to=$2; shift 2; exec "$@" 3<&"$from" 4>&"$to"'
KEYS = {"Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, "")}
SHIFT = 8


class Gone(Exception):
    """The browser ended, or does not know what was asked."""


@dataclass
class Page:
    """One tab with cookies and storage of its own."""

    browser: "Browser"
    session: str
    target: str
    errors: list[str] = field(default_factory=list)  # uncaught ones, and what the policy forbade

    async def send(self, method: str, **parameters: Any) -> Any:
        return await self.browser.send(method, self.session, **parameters)

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def close(self) -> None:
        await self.browser.send("Target.closeTarget", targetId=self.target)

    async def evaluate(self, expression: str, limit_s: float = REPLY_S) -> Any:
        """The value of a JavaScript expression, or of the promise it makes."""
        async with asyncio.timeout(limit_s):
            said = await self.send(
                "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
            )
        if "exceptionDetails" in said:
            raise AssertionError(said["exceptionDetails"]["exception"]["description"])
        return said["result"].get("value")

    async def until(self, condition: str, limit_s: float = REPLY_S) -> None:
        """Wait until a JavaScript condition holds; it is looked at before each frame."""
        waiting = (
            f"new Promise(done => {{ const look = () => ({condition})"
            " ? done(true) : requestAnimationFrame(look); look(); })"
        )
        try:
            await self.evaluate(waiting, limit_s)
        except TimeoutError:
            shown = await self.evaluate("document.body.innerText")
            raise AssertionError(f"never true: {condition}\n{shown}\n{self.errors}") from None

    async def text(self, selector: str) -> str:
        """Text of the last element that fits, as it is shown."""
        found: str = await self.evaluate(f"{_last(selector)}.innerText")
        return found

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the last element that fits; it must be in reach."""
        place = await self.evaluate(f"""(() => {{
            const element = {_last(selector)};
            element.scrollIntoView({{block: "nearest"}});
            const box = element.getBoundingClientRect();
            const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
            const hit = document.elementFromPoint(x, y);
            return element.contains(hit) ? {{x, y}} : `covered by ${{hit?.outerHTML}}`;
        }})()""")
        assert isinstance(place, dict), f"{selector} is {place}"
        for kind in ("mousePressed", "mouseReleased"):
            await self.send(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place
            )

    async def write(self, selector: str, text: str) -> None:
        """Put a text in the place of a field's."""
        await self.evaluate(f"{_last(selector)}.focus(), {_last(selector)}.select?.()")
        if text:
            await self.send("Input.insertText", text=text)
        else:
            await self.evaluate("document.execCommand('delete')")

    async def press(self, key: str, *, shift: bool = False) -> None:
        """A key, where the focus is."""
        name, code, text = KEYS[key]
        common = {"key": name, "windowsVirtualKeyCode": code, "modifiers": SHIFT if shift else 0}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def look(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Size of the window, and the colours that the user prefers."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """A PNG of what is in sight."""
        return base64.b64decode((await self.send("Page.captureScreenshot"))["data"])


class Browser:
    """A running Chromium."""

    def __init__(
        self, process: Process, commands: asyncio.WriteTransport, replies: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._commands = commands
        self._replies = replies
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._listening = asyncio.create_task(self._listen())

    async def page(self) -> Page:
        """A new tab that shares nothing with the others."""
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = await self.send("Target.createTarget", url="about:blank", browserContextId=context)
        session = await self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, session["sessionId"], target["targetId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        return page

    async def send(self, method: str, session: str = "", **parameters: Any) -> Any:
        """A command's result; Gone if there is none."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._commands.write(json.dumps(message).encode() + b"\0")
        return await answer

    async def close(self) -> None:
        """Ask it to leave; see to it that it does."""
        with suppress(Gone, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.send("Browser.close")
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._commands.close()
        await self._listening

    async def _listen(self) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                self._hear(json.loads((await self._replies.readuntil(b"\0"))[:-1]))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Gone("the browser ended"))

    def _hear(self, message: dict[str, Any]) -> None:
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            if "error" in message:
                waiting.set_exception(Gone(message["error"]["message"]))
            else:
                waiting.set_result(message["result"])
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None:
            page.errors += _errors(message.get("method", ""), message.get("params", {}))


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """A Chromium whose profile is in an empty folder; ended with the block."""
    binary = next(filter(None, map(shutil.which, NAMES)), None)
    assert binary is not None, INSTALL
    commands_out, commands_in = os.pipe()
    replies_out, replies_in = os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, FAR_FD) for fd in (commands_out, replies_in)]
    with (folder / "chromium.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", SHELL, "bash", *map(str, theirs)),
            *(binary, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"),
            pass_fds=theirs,
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
        )
    for fd in (*theirs, commands_out, replies_in):
        os.close(fd)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(replies_out, "rb")
    )
    outgoing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(commands_in, "wb"))
    running = Browser(process, outgoing, reader)
    try:
        yield running
    finally:
        await running.close()
        incoming.close()


def _last(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)"


def _errors(method: str, parameters: dict[str, Any]) -> list[str]:
    if method == "Runtime.exceptionThrown":
        details = parameters["exceptionDetails"]
        return [details.get("exception", {}).get("description") or details["text"]]
    if method == "Log.entryAdded":
        entry = parameters["entry"]
        is_ours = entry["level"] == "error" and entry["source"] != "network"
        return [entry["text"]] if is_ours else []
    return []
