"""A headless Chromium, driven by selenium, that talks to this machine alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

#: No sandbox: as root, in a container, there is none. No name is looked up, and nothing is asked for in the background.
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def missing() -> str:
    """Why there is no browser; empty: there is one."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed: apt-get install chromium chromium-driver"
    return ""


@contextlib.contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Chrome]:
    """One that is gone, with all its files, when this ends."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser is not None, missing()
    assert driver is not None, missing()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        options = ChromeOptions()
        options.binary_location = browser
        for argument in (*_ARGUMENTS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = ChromeService(driver, env={**os.environ, "HOME": folder})
        found = Chrome(options=options, service=service)
        try:
            yield found
        finally:
            found.quit()


def sized(browser: Chrome, width: int, height: int, *, phone: bool = False, theme: str = "light") -> None:
    """The page's own width and height, in CSS pixels, however small."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
