"""A page in headless Chromium, by the DevTools protocol: what it holds, asks for and complains about."""

import contextlib
import json
import shutil
import subprocess
import tempfile
import urllib.request
from itertools import count
from pathlib import Path

from tornado.websocket import websocket_connect

from tests.kafka_lab.broker import Unavailable
from tests.kafka_lab.lab import wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")


@contextlib.contextmanager
def chromium():
    """The address of a tab of a running browser; raise `Unavailable` if none is installed."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise Unavailable("PATH holds no Chromium; install the package chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Without its sandbox, which root may not have, and it only sees our own pages.
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command = [program, *flags, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            ready = Path(folder, "DevToolsActivePort")
            wait_until(lambda: ready.exists() and "\n" in ready.read_text(), "Chromium")
            with urllib.request.urlopen(f"http://127.0.0.1:{ready.read_text().split()[0]}/json/list") as answer:
                yield next(tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page")
        finally:
            process.terminate()
            process.wait()


class Page:
    """A tab of a browser, with what it has asked for and complained about by the latest call."""

    def __init__(self, socket):
        self._socket, self._ids = socket, count()
        self.complaints, self.requests, self._is_loaded = [], [], False

    async def call(self, method, **parameters):
        number = next(self._ids)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while (found := json.loads(await self._socket.read_message())).get("id") != number:
            self._note(found)
        assert "error" not in found, found
        return found["result"]

    def _note(self, event):
        self._is_loaded |= event["method"] == "Page.loadEventFired"
        if event["method"] in COMPLAINTS:
            self.complaints.append(event)
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    async def go(self, url):
        """Return once a page is there; what is asked of the one before it would get no answer."""
        self._is_loaded = False
        await self.call("Page.navigate", url=url)
        while not self._is_loaded:
            self._note(json.loads(await self._socket.read_message()))

    async def value(self, expression):
        """The value of an expression of JavaScript."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression):
        """Return once an expression is true."""
        looks = f"const look = () => ({expression} ? done() : setTimeout(look, 50)); look()"
        await self.value(f"new Promise((done) => {{ {looks} }})")


@contextlib.asynccontextmanager
async def opened(tab, url):
    """A `Page` that goes there."""
    socket = await websocket_connect(tab)
    try:
        page = Page(socket)
        for domain in ("Log", "Runtime", "Page", "Network"):
            await page.call(f"{domain}.enable")
        await page.go(url)
        yield page
    finally:
        socket.close()
        while await socket.read_message() is not None:
            pass
