"""A person in front of the whole platform: `diptych chat`, and the page at `/`."""

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

from diptych.testing.browser import browser
from diptych.testing.platform import CLI, MODEL, Platform, environment


async def test_the_terminal_and_the_page_talk_to_what_up_started(
    running: Platform, tmp_path: Path
) -> None:
    command = [*CLI, "chat", "--data-dir", str(running.data_dir), "--json", "--max-tokens", "8"]
    chat = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, env=environment()
    )
    async with asyncio.timeout(60):
        out, _ = await chat.communicate(b"Hello")
    assert chat.returncode == 0
    told = json.loads(out)
    assert told["model"] == MODEL
    assert 1 <= told["usage"]["completion_tokens"] <= 8
    assert told["content"] + told["reasoning_content"]
    async with browser(tmp_path) as chromium:
        page = await chromium.page()
        await page.look(1280, 900)
        await page.open(running.base_url)
        await page.until(f"document.querySelector('#model').value === '{MODEL}'")
        await page.write("#max_tokens", "8")
        await page.write("#message", "Hello")
        await page.press("Enter")
        await page.until("document.querySelector('.answer .actions')", 60)
        assert (await page.text(".facts:not(.timings)")).startswith("prompt ")
        assert page.errors == []
    running.wait_for_baseline()
