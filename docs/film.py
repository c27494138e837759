"""Records steps in a browser as the frames of a moving picture, each with a line that says what is seen."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Locator, Page, ViewportSize

from docs import webp

WIDTH, HEIGHT, _BAR_HEIGHT = 1060, 660, 46
_BEFORE_CLICK_MS, _REDRAWN_MS, _MAX_POINTER_X = 1100, 250, 60

# Draws a frame with its line and the pointer, and encodes what differs from the frame before.
_ENCODE = """
async ([png, width, height, bar, caption, fact, pointer]) => {
  const sheet = () => Object.assign(document.createElement('canvas'), {width, height: height + bar});
  const scene = globalThis.scene ??= {canvas: sheet()};
  const pen = scene.canvas.getContext('2d', {alpha: false, willReadFrequently: true});
  pen.drawImage(await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob()), 0, 0);
  pen.fillStyle = '#16222e';
  pen.fillRect(0, height, width, bar);
  pen.textBaseline = 'middle';
  pen.fillStyle = '#ffffff';
  pen.font = '600 18px sans-serif';
  pen.fillText(caption, 18, height + bar / 2);
  pen.fillStyle = '#9fd0ff';
  pen.font = '14px monospace';
  pen.textAlign = 'right';
  pen.fillText(fact, width - 18, height + bar / 2);
  pen.textAlign = 'left';
  if (pointer) {
    pen.translate(pointer[0], pointer[1]);
    const arrow = new Path2D('M0 0V21L5 16.5 8.5 24.5 12 23 8.5 15.2H15.5Z');
    pen.fillStyle = '#111111';
    pen.strokeStyle = '#ffffff';
    pen.lineWidth = 2;
    pen.stroke(arrow);
    pen.fill(arrow);
    pen.resetTransform();
  }
  const all = pen.getImageData(0, 0, width, height + bar);
  const now = new Uint32Array(all.data.buffer), before = scene.before;
  scene.before = now;
  let [left, top, right, bottom] = before ? [width, height + bar, -1, -1] : [0, 0, width - 1, height + bar - 1];
  for (let n = 0; before && n < now.length; n++) {
    if (now[n] === before[n]) continue;
    const x = n % width, y = (n - x) / width;
    left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y);
  }
  if (right < 0) return null;
  left -= left % 2; top -= top % 2;
  const part = Object.assign(document.createElement('canvas'), {width: right - left + 1, height: bottom - top + 1});
  part.getContext('2d', {alpha: false}).drawImage(scene.canvas, -left, -top);
  const blob = await new Promise(done => part.toBlob(done, 'image/webp', 1));
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = '';
  for (const one of bytes) text += String.fromCharCode(one);
  return [left, top, part.width, part.height, btoa(text)];
}
"""


@dataclass(frozen=True)
class Frame:
    png: bytes
    shown_ms: int
    caption: str
    fact: str = ""
    pointer: tuple[float, float] | None = None


@dataclass
class Film:
    page: Page
    frames: list[Frame] = field(default_factory=list)
    caption: str = ""
    fact: str = ""

    def take(self, shown_ms: int, *, pointer: tuple[float, float] | None = None) -> None:
        self.frames.append(Frame(self.page.screenshot(timeout=60_000), shown_ms, self.caption, self.fact, pointer))

    def watch(self, count: int, shown_ms: int = 1000) -> None:
        """Take a frame a second, while the page updates itself."""
        for _ in range(count):
            self.take(shown_ms)
            self.page.wait_for_timeout(1000)

    def click(self, target: Locator) -> float:
        """Show the pointer on it, then click; return the time of the click."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None  # noqa: S101 - it is visible
        x = min(box["width"] / 2, _MAX_POINTER_X)  # on the text of a wide element
        self.take(_BEFORE_CLICK_MS, pointer=(box["x"] + x, box["y"] + box["height"] / 2))
        clicked_at = time.monotonic()
        target.click()
        self.page.wait_for_timeout(_REDRAWN_MS)
        return clicked_at


def open_film(browser: Browser) -> Film:
    size = ViewportSize(width=WIDTH, height=HEIGHT)
    return Film(browser.new_context(viewport=size, color_scheme="light", reduced_motion="reduce").new_page())


def encode(browser: Browser, frames: Sequence[Frame]) -> bytes:
    """Return an animated WebP file without loss."""
    page = browser.new_page()
    parts: list[webp.Part] = []
    for frame in frames:
        png = base64.b64encode(frame.png).decode()
        drawn: list[Any] | None = page.evaluate(
            _ENCODE, [png, WIDTH, HEIGHT, _BAR_HEIGHT, frame.caption, frame.fact, frame.pointer]
        )
        if drawn is None:
            parts[-1] = webp.Part(**{**vars(parts[-1]), "shown_ms": parts[-1].shown_ms + frame.shown_ms})
        else:
            x, y, width, height, image = drawn
            parts.append(webp.Part(x, y, width, height, frame.shown_ms, base64.b64decode(image)))
    page.close()
    return webp.animation(WIDTH, HEIGHT + _BAR_HEIGHT, parts)
