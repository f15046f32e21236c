"""The lane page in a browser, as its reader meets it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PATIENCE_S = 20.0
#: What has the focus, in words.
FOCUS = "const e = document.activeElement; return e.getAttribute('aria-label') || e.textContent || e.id"
#: The least of the outline's and the border's width, and whether the outline has a colour.
OUTLINE = """
const style = getComputedStyle(document.activeElement);
return [style.outlineStyle, parseFloat(style.outlineWidth), style.outlineColor]
"""
TOO_WIDE = """
const most = document.documentElement.clientWidth;
const all = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('.unseen, thead'));
return all.filter((e) => e.getBoundingClientRect().right > most + 0.5).map((e) => e.outerHTML.slice(0, 80))
"""
TOO_SMALL = """
const all = [...document.querySelectorAll('button, input')].filter((e) => e.checkVisibility());
return all.map((e) => e.getBoundingClientRect()).filter((box) => box.width < 44 || box.height < 44).length
"""

#: Text with less than 4.5 to 1 between it and what it stands on (WCAG 2.2, 1.4.3).
TOO_FAINT = """
const lightness = (rgb) => {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const colour = (css) => css.match(/[\\d.]+/g).map(Number);
const paper = (e) => {
  for (; e; e = e.parentElement) {
    const [r, g, b, a = 1] = colour(getComputedStyle(e).backgroundColor);
    if (a > 0) return [r, g, b];
  }
  return [255, 255, 255];
};
const written = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && written(e)).map((e) => {
  const [one, other] = [lightness(colour(getComputedStyle(e).color).slice(0, 3)), lightness(paper(e))];
  return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), e.outerHTML.slice(0, 80)];
}).filter(([ratio]) => ratio < 4.5)
"""


@final
class Page:
    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self, url: str | None = None) -> None:
        """Anew, without a token, as wide as a desk."""
        self.sized(1280, 900)
        self.browser.get(f"{url or self.url}/")
        self.browser.execute_script("sessionStorage.clear()")
        self.browser.refresh()
        self.until(lambda: self.part("state"), "that it shows the lane")

    def sized(self, width: int, height: int, *, phone: bool = False, **features: str) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """As it is seen; empty: it is not."""
        script = "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : ''"
        found: str = self.run(script, selector)
        return found.strip()

    def part(self, name: str) -> str:
        """A figure of the lane."""
        return self.text(f'#lanes [data-part="{name}"]')

    def rows(self) -> list[dict[str, str]]:
        """The sequences, as their cells are seen, by the names of their columns."""
        script = """
        return [...document.querySelectorAll('[data-part=rows] tr')].map((row) => Object.fromEntries(
          [...row.querySelectorAll('[data-label]')].map((cell) => [cell.dataset.label, cell.innerText.trim()])))
        """
        found: list[dict[str, str]] = self.run(script)
        return found

    def until(self, done: Callable[[], Any], what: str, within: float = PATIENCE_S) -> Any:
        end = time.monotonic() + within
        while not (found := done()):
            assert time.monotonic() < end, f"not within {within:g} s: {what}: {self.text('body')}"
            time.sleep(0.02)
        return found

    # --- keys ----------------------------------------------------------------------------------------------------

    def keys(self, *keys: str) -> None:
        """To whatever has the focus."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def focus(self) -> str:
        found: str = self.run(FOCUS)
        return found

    def tab_to(self, name: str, most: int = 40) -> None:
        """With the Tab key alone; what is on the way shows that it has the focus."""
        for _ in range(most):
            self.keys(Keys.TAB)
            style, width, _ = self.run(OUTLINE)
            if self.focus().startswith(name):
                assert (style, width) == ("solid", 3), "the focus is not seen"
                return
        raise AssertionError(f"{name} is not reached; the focus is at {self.focus()}")

    def unlock(self, token: str) -> None:
        """By keys."""
        self.tab_to("token")
        self.keys(token, Keys.ENTER)

    def press(self, name: str) -> None:
        """A button of the dialog, if it is open, by its accessible name or its text, with the mouse."""
        self.button(name).click()

    def button(self, name: str) -> WebElement:
        script = """
        const open = document.querySelector('dialog[open]') ?? document;
        return [...open.querySelectorAll('button')].find((b) => b.checkVisibility()
          && (b.getAttribute('aria-label') ?? b.textContent).startsWith(arguments[0]))
        """
        found: WebElement = self.until(lambda: self.run(script, name), f"that there is a button {name}")
        return found

    # --- what a screen reader is told --------------------------------------------------------------------------------

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of all that is not ignored."""
        self.browser.execute_cdp_cmd("Accessibility.enable", {})
        nodes = self.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def complaints(self) -> list[str]:
        """What the browser has logged, but for answers that are no 200."""
        logged = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [one["message"] for one in logged if one["source"] != "network"]
