"""Chromium without a window, driven over a pipe by its DevTools protocol."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--window-size=1400,900",
)
SHOWN = "performance.getEntriesByName('complete').length > 0"
WAIT = "new Promise(done => setTimeout(done, {ms}))"


class Browser:
    """The process, and the pipe to it. It is started once, and ends with the tests."""

    def __init__(self):
        (read, commands), (answers, write) = os.pipe(), os.pipe()
        profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        argv = [CHROMIUM, *FLAGS, f"--user-data-dir={profile.name}"]
        connect = f'exec "$@" 3<&{read} 4>&{write}'
        self.process = subprocess.Popen(
            ["bash", "-c", connect, "bash", *argv],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
            cwd=profile.name,
        )
        os.close(read)
        os.close(write)
        self.commands = os.fdopen(commands, "wb", buffering=0)
        self.answers = os.fdopen(answers, "rb")
        self.number = 0
        atexit.register(self.close, profile)

    def close(self, profile):
        self.process.kill()
        self.process.wait()
        self.commands.close()
        self.answers.close()
        profile.cleanup()

    def read(self):
        text = bytearray()
        while (byte := self.answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return json.loads(text)


running = functools.cache(Browser)


class Page:
    """An open page. `errors` are the messages of the browser: exceptions, and what a policy refused."""

    def __init__(self, browser):
        self.browser, self.session, self.errors = browser, None, []

    def call(self, method, **params):
        self.browser.number += 1
        number = self.browser.number
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.browser.commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self.browser.read()).get("id") != number:
            is_own = answer.get("sessionId") == self.session
            if is_own and answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.errors.append(json.dumps(answer["params"]))
        return answer["result"]

    def evaluate(self, script):
        """The value of JavaScript, which no policy of the page stops."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, ms=300):
        self.evaluate(WAIT.format(ms=ms))

    def until(self, script):
        """Wait until JavaScript is true, maybe in the next page."""
        for _ in range(100):
            with contextlib.suppress(KeyError):  # no result: the page is replaced now
                if self.evaluate(script):
                    return
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def press(self, key):
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)


@contextlib.contextmanager
def opened(url, width=1400, scheme="light"):
    """The page at a URL or in a file, with its scripts run."""
    page = Page(running())
    target = page.call("Target.createTarget", url="about:blank")["targetId"]
    attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
    page.session = attached["sessionId"]
    for domain in ("Runtime", "Log", "Page"):
        page.call(f"{domain}.enable")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", features=features)
    page.call("Page.navigate", url=url if isinstance(url, str) else url.resolve().as_uri())
    page.until(SHOWN)
    yield page
    page.session = None
    page.call("Target.closeTarget", targetId=target)
