"""Takes the documentation's screenshots, with Chromium, after ``make demo`` and ``make demo-qa``.

    python -m tools.pictures.screens

It needs Debian's packages chromium and chromium-driver, and the packages for tests. Screenshots
depend on the demo's text and on the machine's fonts, so no test compares them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tools.pictures.__main__ import DOCS

_DEMO = Path("demo")
_MASKED = _DEMO / "masked"  # records with masks, of the demo's held-out text
_WIDTH = 900
_COLOURS = 64  # keep a page of text below 100 kB


class Screen(NamedTuple):
    """A part of a page.

    Attributes:
      name: name of the file in docs.
      page: an HTML file.
      height: height of the picture, in pixels.
      first: selector of the element at the top of the picture.
    """

    name: str
    page: Path
    height: int
    first: str = "body"


_SCREENS = (
    Screen("start/inspection.png", _DEMO / "inspection.html", 600),
    Screen("start/report.png", _DEMO / "qa/model/report.html", 690),
    Screen("start/report_questions.png", _DEMO / "qa/model/report.html", 640, "#examples"),
    Screen("howto/inspected_masks.png", _DEMO / "masked.html", 330, "ul.legend"),
)


def inspect_records() -> None:
    """Writes the inspections of the demo's records, and of records with masks."""
    text = f"--input_file={_DEMO}/data/shards/heldout-*.txt"
    vocabulary = f"--vocab_file={_DEMO}/data/vocabulary/vocab.txt"
    lengths = ("--max_seq_length=64", "--max_predictions_per_seq=10")
    for command in (
        ("data_prep.inspect", f"{_DEMO}/data/records/train", f"--report={_DEMO}/inspection.html"),
        ("data_prep.create_pretraining_data", text, f"--output_dir={_MASKED}", vocabulary, *lengths,
         "--do_whole_word_mask", "--dupe_factor=1"),
        ("data_prep.inspect", str(_MASKED), f"--report={_DEMO}/masked.html", "--num_samples=4"),
    ):  # fmt: skip
        subprocess.run([sys.executable, "-m", *command], check=True)


@contextmanager
def browser() -> Iterator[Any]:
    """Yields a headless Chromium, which is closed at the end of the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        hidden = ("--headless=new", "--no-sandbox", "--hide-scrollbars")
        for flag in (*hidden, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def take(driver: Any, screen: Screen) -> None:
    """Writes a screenshot as a PNG with few colours."""
    from PIL import Image

    size = {"width": _WIDTH, "height": screen.height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(screen.page.resolve().as_uri())
    first = f"document.querySelector({screen.first!r})"
    driver.execute_script(f"window.scrollTo(0, {first}.getBoundingClientRect().top - 8)")
    path = DOCS / screen.name
    driver.save_screenshot(str(path))
    with Image.open(path) as image:
        image.convert("RGB").quantize(_COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    inspect_records()
    with browser() as chromium:
        for one in _SCREENS:
            take(chromium, one)
