"""The page at / in a real browser, with a daemon that learns columns with hostile names."""

import asyncio
import contextlib
import json
import threading
from pathlib import Path

import pytest

from streammoe.daemon.signals import StopFlag
from tests.integration.browser import chromium, opened
from tests.integration.conftest import available
from tests.unit import daemons

pytestmark = pytest.mark.usefixtures("logging_as_before")
HOSTILE, VALUE = "<img src=x onerror=alert(1)>", "<script>alert(2)</script>"
PARTS = (
    *("header", "nav[aria-label]", "main", "footer", "h1", "[role=status]", "section[aria-labelledby]"),
    *("svg[role=img] > title", "svg[role=img] > desc", "#members tr", "#experts tr", "#letters li"),
)
CONTRASTS = """
(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => color.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    const found = channels(getComputedStyle(node).backgroundColor);
    return found[3] === 0 ? behind(node.parentElement) : found;
  };
  return Object.fromEntries([...document.querySelectorAll("body *")].flatMap((node) => {
    const text = [...node.childNodes].find((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
    if (!text || !node.getClientRects().length) return [];
    const color = channels(getComputedStyle(node)[node instanceof SVGElement ? "fill" : "color"]);
    const [low, high] = [light(color), light(behind(node))].sort((a, b) => a - b);
    return [[`${node.tagName} ${text.data}`, (high + 0.05) / (low + 0.05)]];
  }));
})()
"""


@pytest.fixture
def url(tmp_path, monkeypatch, caplog):
    """The address of a daemon that has learned all that there is, and waits for more."""
    caplog.set_level("INFO", "streammoe")
    config = """
        source = { kind = "file", path = "data.jsonl", follow = true }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50 }
        metrics.enabled = false
        serve = { enabled = true, port = 0 }
        """
    daemons.enter(tmp_path, monkeypatch, config)
    rows = [{HOSTILE: i % 7, "b": i % 5, "y": i % 3 + (i % 7)} for i in range(400)]
    rows += [{HOSTILE: VALUE, "b": 1, "y": 1}, *({"b": i % 5, "y": i % 3} for i in range(1_000))]
    Path("data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stop = StopFlag()
    with daemons.opened() as running:
        thread = threading.Thread(target=running.daemon.run, args=(stop,))
        thread.start()
        yield next(message for message in caplog.messages if "predictions at" in message).rpartition(" ")[2]
        stop.requested = True
        thread.join()


@pytest.fixture
def tab():
    """The address of a tab of a browser."""
    with contextlib.ExitStack() as stack:
        yield available(lambda: stack.enter_context(chromium()))


def test_it_is_complete_harmless_and_readable_and_says_when_there_is_no_answer(url, tab):
    async def visit():
        async with opened(tab, url) as page:
            await look_at(page, url)

    asyncio.run(visit())


async def look_at(page, url):
    await page.until("document.querySelector('dd')?.textContent.startsWith('1,400')")
    await page.until("document.getElementById('concerns').textContent")
    assert await page.value("document.title") == "Learning – streammoe"
    text = await page.value("document.body.innerText")
    assert f"Columns that come no more: {HOSTILE}" in text
    assert VALUE in text
    assert not await page.value("document.querySelector('main img, main script')")
    assert [part for part in PARTS if not await page.value(f"!!document.querySelector('{part}')")] == []
    await page.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
    assert await page.value("document.documentElement.scrollWidth") == 360
    for scheme in ("light", "dark"):
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        await page.call("Emulation.setEmulatedMedia", features=[wanted])
        contrasts = await page.value(CONTRASTS)
        assert len(contrasts) > 30
        assert {what: contrast for what, contrast in contrasts.items() if contrast < 4.5} == {}
    await page.value("document.querySelector('button[value=day]').click()")
    assert await page.value("document.querySelector('[aria-pressed=true]').value") == "day"
    asked = {request.partition("?")[0].removeprefix(url) for request in page.requests}
    assert asked == {"/", "/status.json", *(f"/static/{name}" for name in ("page.css", "page.js", "icon.svg"))}
    assert page.complaints == []
    assert await page.value("[1234.56, 0, null, 2.5e24, 1e-9].map(number).join(' ')") == "1,235 0 – 2.5E24 1E-9"
    for offline, word in ((True, "Gone"), (False, "Learning")):
        speeds = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await page.call("Network.emulateNetworkConditions", offline=offline, **speeds)
        await page.until(f"document.getElementById('word').textContent === '{word}'")


def test_an_address_may_name_user_and_password(url, tab):
    async def visit():
        async with opened(tab, url.replace("://", "://user:password@")) as page:
            await page.until("document.getElementById('word').textContent === 'Learning'")

    asyncio.run(visit())
