"""The playground in a real browser, in front of a gateway whose engines say what a test wants."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from diptych.core.errors import BadRequest, Overloaded
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.office import Plan, open_office
from diptych.testing.browser import Browser, Page, browser
from diptych.testing.gateway import ScriptedGateway, scripted_gateway
from diptych.text.markers import Marker
from diptych.text.tools import ToolCall, invocations

pytestmark = pytest.mark.asyncio(loop_scope="module")

TINY = Path(__file__).parents[1] / "golden" / "tiny-text"
END, EOS = Marker.END_THINK, Marker.EOS
OVER = "document.querySelector('.answer:last-child .actions')"
FACTS = ".facts:not(.timings)"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(TINY) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Browser, gateway: ScriptedGateway) -> AsyncIterator[Page]:
    page = await chromium.page()
    await page.look(1280, 900)
    await page.open(gateway.base_url)
    await page.until("document.querySelector('#model').value === 'tiny'")
    yield page
    assert page.errors == []
    await page.close()


async def ask(page: Page, text: str, until: str = OVER) -> None:
    await page.write("#message", text)
    await page.press("Enter")
    await page.until(until)


async def lines(page: Page, selector: str) -> list[str]:
    return [line for line in (await page.text(selector)).split("\n") if line]


async def count(page: Page, selector: str) -> int:
    found: int = await page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")
    return found


async def test_an_answer_streams_with_its_reasoning_folded_and_its_facts_below(
    page: Page, gateway: ScriptedGateway
) -> None:
    gateway.says("Let me think.", END, "Hello ", "there.", EOS, cached_tokens=3)
    gateway.hops.holds = {"token 4", "token 24"}
    await ask(page, "Hi", "document.querySelector('.reasoning.busy')")
    thought = await page.evaluate("document.querySelector('.thoughts').textContent")
    assert 0 < len(thought) < len("Let me think.")
    assert await page.text(".reasoning summary") == f"Reasoning {len(thought)} characters"
    assert not await page.evaluate("document.querySelector('.reasoning').open")
    assert await page.evaluate("document.querySelector('#log').ariaBusy") == "true"
    gateway.hops.release()
    await page.until(OVER)
    assert await page.text(".content") == "Hello there."
    assert await page.text(".reasoning summary") == "Reasoning 13 characters"
    assert await page.evaluate("document.querySelector('#log').ariaBusy") == "false"
    await page.click(".reasoning summary")
    assert await page.text(".thoughts") == "Let me think."
    prompt = len(gateway.hops.generations[-1].prompt)
    sampled = len(gateway.hops.output.token_ids)
    prompted, tokens, first, rate = await lines(page, FACTS)
    assert prompted == f"prompt {prompt} (3 cached)"
    assert re.fullmatch(rf"{sampled} tokens \(\d+ reasoning\)", tokens)
    assert re.fullmatch(r"first token [\d.]+ m?s", first)
    assert re.fullmatch(r"[\d.]+ tokens/s", rate)
    assert await page.text("#status") == f"Answer complete, {sampled} tokens"


async def test_settings_reach_the_request_and_outlive_a_reload(
    page: Page, gateway: ScriptedGateway
) -> None:
    gateway.says("Yes.", EOS)
    wishes = {"temperature": "0.25", "top_p": "0.5", "max_tokens": "7", "seed": "42"}
    for name, value in wishes.items():
        await page.write(f"#{name}", value)
    await page.write("#system", "Be brief.")
    await page.click("#thinking")
    await page.open(gateway.base_url)
    await page.until("document.querySelector('#model').value === 'tiny'")
    await ask(page, "Really?")
    generation = gateway.hops.generations[-1]
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.25, 0.5, 42)
    assert generation.max_new == 7
    assert "Be brief." in gateway.heard
    assert not gateway.is_to_think
    await page.click("#thinking")
    await page.evaluate(
        "effort = document.querySelector('#effort'), effort.value = 30,"
        "effort.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert await page.text("#effort-shown") == "30"
    await ask(page, "And now?", "document.querySelectorAll('.answer .actions').length === 2")
    assert "30" in gateway.heard
    assert gateway.is_to_think
    await page.click("#defaults")
    assert await page.evaluate("document.querySelector('#temperature').value") == ""


async def test_a_wrong_setting_is_named_before_anything_is_sent(
    page: Page, gateway: ScriptedGateway
) -> None:
    await page.write("#tools", "[{]")
    await page.write("#message", "Hi")
    await page.press("Enter")
    assert (await page.text("#notice")).startswith("Tools: not JSON")
    assert await page.evaluate("document.activeElement.id") == "tools"
    await page.write("#tools", "")
    await page.write("#temperature", "7")
    await page.click("#send")
    assert await page.text("#notice") == "Temperature: expected a number from 0 to 2."
    assert gateway.hops.wants == []
    assert await page.evaluate("document.querySelector('#message').value") == "Hi"


async def test_a_call_is_a_card_and_its_result_goes_on_with_the_conversation(
    page: Page, gateway: ScriptedGateway
) -> None:
    calls = [ToolCall("", "weather", f'{{"city": "{city}"}}') for city in ("Paris", "Rome")]
    gateway.says("I need it.", END, "I look.", *invocations(calls), EOS, tokens_a_step=2)
    tool = {"name": "weather", "description": "Tells it.", "parameters": WEATHER}
    await page.write("#tools", json.dumps([tool]))
    await ask(page, "Weather?")
    assert "Tells it." in gateway.heard
    assert await count(page, ".card") == 2
    assert await page.text(".card pre") == '{\n  "city": "Rome"\n}'
    assert await page.evaluate("document.activeElement.ariaLabel") == "Result of weather"
    await page.write("#message", "Forget it")
    await page.click("#send")
    assert await page.text("#notice") == "The model waits for the results of its calls."
    await page.click(".results button")
    assert len(gateway.hops.wants) == 1  # a result is missing
    gateway.says(END, "It is fine.", EOS)
    await page.write(".card:nth-child(1) textarea", "Sunny in Paris")
    await page.write(".card:nth-child(2) textarea", "Rain in Rome")
    await page.click(".results button")
    await page.until("document.querySelectorAll('.answer .actions').length === 2")
    assert await page.text(".content") == "It is fine."
    heard = gateway.heard
    parts = ["I need it.", "I look.", "Rome", "Sunny in Paris", "Rain in Rome"]
    assert sorted(parts, key=heard.index) == parts
    assert await count(page, ".results button") == 0


async def test_arguments_are_shown_as_they_were_written(
    page: Page, gateway: ScriptedGateway
) -> None:
    number = '{"n": 12345678901234567890}'
    gateway.says(END, *invocations([ToolCall("", "count", number)]), EOS)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await page.write("#tools", json.dumps({"name": "count", "parameters": schema}))
    await ask(page, "Count")
    assert await page.text(".card pre") == number


@pytest.mark.parametrize("way", ["button", "key"])
async def test_stop_aborts_at_the_engine_and_keeps_what_was_said(
    page: Page, gateway: ScriptedGateway, way: str
) -> None:
    gateway.says(END, "One two three four five six", EOS)
    gateway.hops.holds = {"token 9"}
    await ask(page, "Count", "document.querySelector('.answer .content')?.innerText")
    assert not gateway.hops.is_at_baseline
    if way == "key":
        await page.press("Escape")
    else:
        await page.click("#stop")
    await page.until(OVER)
    await gateway.hops.settled()
    assert len(gateway.hops.cancelled) == 1
    kept = await page.text(".content")
    assert "One two three four five six".startswith(kept)
    assert "stopped" in await page.text(FACTS)
    assert await page.text("#status") == "Answer stopped"
    gateway.hops.release()
    gateway.says("Seven.", EOS)
    await ask(page, "Go on", "document.querySelectorAll('.answer .actions').length === 2")
    assert kept in gateway.heard


async def test_an_error_is_shown_with_code_status_and_request(
    page: Page, gateway: ScriptedGateway
) -> None:
    full = Overloaded("no room", code="no_capacity", retry_after_s=7)
    gateway.hops.failures["place"].append(full)
    await ask(page, "Hi")
    head, message, code, status, request = await lines(page, ".error")
    assert head == "No answer"
    assert re.fullmatch(r"no room Try again in ([7-9]|1[01]) s\.", message)
    assert (code, status) == ("no_capacity", "HTTP 503")
    assert re.fullmatch(r"req_[0-9a-f]{32}", request)
    gateway.hops.failures["token 5"].append(BadRequest(EVIL, code="odd"))
    gateway.says(END, "Half an answer that breaks", EOS)
    await page.click(".answer:last-child [data-last]")  # regenerate
    await page.until(OVER)
    assert await count(page, ".answer") == 1
    head, message, code, request = await lines(page, ".error")
    assert (head, message, code) == ("The answer broke off", EVIL, "odd")
    assert re.fullmatch(r"req_[0-9a-f]{32}", request)
    assert "Half an answer".startswith(await page.text(".content"))


async def test_a_gateway_that_is_gone_is_an_error_too(page: Page, gateway: ScriptedGateway) -> None:
    await page.send("Network.enable")
    gateway.says(END, "Hello", EOS)
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.send("Network.emulateNetworkConditions", offline=True, **offline)
    await ask(page, "Hi")
    assert await lines(page, ".error") == ["No answer", "The gateway cannot be reached."]
    await page.send("Network.emulateNetworkConditions", offline=False, **offline)
    await page.click(".answer:last-child [data-last]")
    await page.until("document.querySelector('.answer:last-child .content').innerText === 'Hello'")


@pytest.mark.parametrize("tokens_a_step", [1, 200])
async def test_what_the_model_writes_is_text_and_never_markup(
    page: Page, gateway: ScriptedGateway, tokens_a_step: int
) -> None:
    call = ToolCall("", "f", json.dumps({"x": EVIL}))
    fenced = f"{EVIL}\n```{EVIL}\n{EVIL}\n```\n# {EVIL}\n**{EVIL}**"
    said = [EVIL, END, fenced, *invocations([call]), EOS]
    gateway.says(*said, tokens_a_step=tokens_a_step)
    await page.write("#tools", json.dumps({"name": "f"}))
    await ask(page, EVIL)
    assert await page.text(".bubble") == EVIL
    assert await page.evaluate("document.querySelector('.thoughts').textContent") == EVIL
    assert (await page.text(".content")).count(EVIL) == 5
    assert EVIL in json.loads(await page.text(".card pre"))["x"]
    assert await count(page, "#log script, #log .turn img") == 0
    assert await page.evaluate("window.hacked") is None


async def test_code_is_shown_as_code_however_it_comes(page: Page, gateway: ScriptedGateway) -> None:
    code = "def f(x):\n\n    return '```' + `x` + '#'\n# end"
    text = f"Use **this**:\n```python\n{code}\n```\nor `that`.\n\n## Next\nOne\ntwo\n~~~\nopen"
    await page.click("#thinking")
    for tokens_a_step in (1, 2, 3, 7, 500):
        gateway.says(text, EOS, tokens_a_step=tokens_a_step)
        await page.click("#clear")
        await ask(page, "Code?")
        shown = await page.evaluate(
            "[...document.querySelector('.content').children].map(e => [e.tagName, e.textContent])"
        )
        assert shown == [
            ["P", "Use this:"],
            ["FIGURE", f"pythonCopy{code}\n"],
            ["P", "or that."],
            ["H4", "Next"],
            ["P", "One\ntwo"],
            ["FIGURE", "codeCopyopen\n"],
        ]
        assert await page.text(".content strong") == "this"
        assert await page.text(".content p code") == "that"


async def test_the_last_message_can_be_edited_and_all_be_forgotten(
    page: Page, gateway: ScriptedGateway
) -> None:
    gateway.says("First.", EOS)
    await page.click("#thinking")
    await ask(page, "One")
    await ask(page, "Two", "document.querySelectorAll('.answer .actions').length === 2")
    edits = "[...document.querySelectorAll('[data-last=edit]')].map(e => e.hidden)"
    assert await page.evaluate(edits) == [True, False]
    await page.click("[data-last=edit]")
    await page.write(".editor textarea", "Three")
    await page.click(".editor .primary")
    await page.until(
        "document.querySelector('.user:nth-last-child(2) .bubble')?.innerText === 'Three'"
    )
    await page.until(OVER)
    assert await count(page, ".turn") == 4
    heard = gateway.heard
    assert "One" in heard and "First." in heard and "Three" in heard
    assert "Two" not in heard
    await page.click("#clear")
    assert await count(page, ".turn") == 0
    assert await page.evaluate("!document.querySelector('#welcome').hidden")
    await ask(page, "Four")
    assert "One" not in gateway.heard


async def test_shift_and_enter_break_a_line_and_nothing_is_sent_unless_something_is_said(
    page: Page, gateway: ScriptedGateway
) -> None:
    await page.evaluate("document.querySelector('#message').focus()")
    await page.press("Enter")
    await page.press("Enter", shift=True)
    await page.click("#send")
    assert gateway.hops.wants == []
    await page.write("#message", "a")
    await page.press("Enter", shift=True)
    await page.send("Input.insertText", text="b")
    await page.press("Enter")
    await page.until(OVER)
    assert await page.text(".bubble") == "a\nb"


async def test_a_key_is_asked_for_when_it_is_needed_and_forgotten_with_the_tab(
    chromium: Browser, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        office = await open_office(Plan(tmp_path, b"cluster secret"))
        stack.push_async_callback(office.close)
        clerk = asyncio.create_task(office.clerk.run())
        stack.callback(clerk.cancel)
        wish = Wish("page", scopes=(Scope.INFERENCE,))
        key = (await office.desk.create(Actor("tester", "here"), wish))[1]
        gateway = await stack.enter_async_context(scripted_gateway(TINY, door=office.door))
        gateway.says(END, "Hello", EOS)
        page = await chromium.page()
        await page.look(390, 800)  # a phone's
        await page.open(gateway.base_url)
        await page.until("document.activeElement.id === 'key'")
        assert await page.text("#notice") == "This gateway asks for an API key."
        await page.write("#key", "sk-wrong")
        await page.press("Enter")
        await page.until("document.querySelector('#notice').innerText.includes('does not know')")
        await page.write("#key", key)
        await page.press("Enter")
        await page.until("document.querySelector('#model').value === 'tiny'")
        await page.click("#close")
        await ask(page, "Hi", "document.querySelector('.content')?.innerText === 'Hello'")
        stored = await page.evaluate("JSON.stringify([localStorage, document.cookie])")
        assert stored == '[{},""]'
        assert key in await page.evaluate("JSON.stringify(sessionStorage)")
        await page.close()


async def test_it_fits_any_screen_in_light_and_dark(page: Page, gateway: ScriptedGateway) -> None:
    gateway.says(END, "word " * 9 + "x" * 150 + "\n```\n" + "y" * 200, EOS)
    await ask(page, "A" * 90)
    for width, is_dark in itertools.product((320, 390, 800, 1280), (False, True)):
        await page.look(width, 700, is_dark=is_dark)
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        assert await page.evaluate("document.querySelector('#log').scrollWidth") <= width
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.findall(r"\d+", background)[0])
        assert (red < 60) == is_dark
        number = await count(page, ".answer") + 1
        await page.write("#message", "B")
        await page.click("#send")
        await page.until(f"document.querySelectorAll('.answer .actions').length === {number}")


async def test_every_control_has_a_name(page: Page) -> None:
    nameless = await page.evaluate("""
        [...document.querySelectorAll("button, input, select, textarea, output")]
            .filter(e => !(e.ariaLabel || e.labels?.length || e.textContent.trim()))
            .map(e => e.outerHTML)
    """)
    assert nameless == []


@pytest.mark.parametrize("where", ["chunk", "usage"])
async def test_timings_of_the_server_are_shown_if_there_are_any(page: Page, where: str) -> None:
    timings = {"queue_ms": 1.25, "prefill_ms": 40, "decode_s": 2, "steps": 3, "note": "x"}
    chunk = {"timings": timings} if where == "chunk" else {"usage": {"timings": timings}}
    facts = await page.evaluate(f"""import("/playground/answer.js").then(({{Answer}}) => {{
        const answer = new Answer(0);
        answer.take({json.dumps(chunk)}, 1);
        return answer.timingFacts;
    }})""")
    assert facts == ["server:", "queue 1.3 ms", "prefill 40 ms", "decode 2.00 s", "steps 3"]


CUT = """import("/playground/gateway.js").then(async ({{chat}}) => {{
    const bytes = new TextEncoder().encode({text});
    const body = new ReadableStream({{
        start(stream) {{
            for (const byte of bytes) stream.enqueue(Uint8Array.of(byte));
            if ({breaks}) stream.error(new TypeError("network error"));
            else stream.close();
        }},
    }});
    window.fetch = async () => new Response(body, {{headers: {{"x-request-id": "req_1"}}}});
    const seen = [];
    try {{
        for await (const chunk of chat({{}}, "", null)) seen.push(chunk);
    }} catch (error) {{
        seen.push([error.status, error.message, error.code, error.requestId]);
    }}
    return seen;
}})"""
EARLY = [200, "The answer ended too early.", "", "req_1"]
BROKEN = [200, "The connection broke within the answer.", "", "req_1"]
TOLD = [200, "no", "odd", "req_2"]


CUTS: list[tuple[str, bool, list[object]]] = [
    (
        'data: {"a": "é🙂"}\n\ndata: {"b": 1}\n\ndata: [DONE]\n\n',
        False,
        [{"a": "é🙂"}, {"b": 1}],
    ),
    (': hello\r\n\r\ndata:{"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n', False, [{"a": 1}]),
    ('data: {"a": 1}\n\n', False, [{"a": 1}, EARLY]),
    ('data: {"a": 1}\n\ndata: [DONE]', False, [{"a": 1}, EARLY]),
    ('data: {"a": 1}\n\ndata: {', True, [BROKEN]),
    ('data: {"a": 1}\n\ndata: {]\n\n', False, [{"a": 1}, BROKEN]),
    (
        'data: {"error": {"message": "no", "code": "odd", "request_id": "req_2"}}\n\n',
        False,
        [TOLD],
    ),
]


async def test_a_stream_is_read_however_it_is_cut_and_never_taken_for_whole(page: Page) -> None:
    for text, breaks, seen in CUTS:
        cut = CUT.format(text=json.dumps(text), breaks=json.dumps(breaks))
        assert await page.evaluate(cut) == seen
