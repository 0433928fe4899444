"""The page of a load in a real browser: it asks for nothing, fits narrow screens, and can be dark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.cli.bench.report.load_page import load_page
from services.cli.bench.report.load_summary import SummarySettings, summarize
from services.cli.bench.run.load import LoadResult
from tests.support.browser import DESKTOP, PHONE, page
from tests.unit.services.cli.bench.records import QUIET, call_record

READABLE = 4.5
"""The contrast that the guidelines for accessibility ask of text."""
CONTRAST = """
(() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((part) => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const canvas = dark ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
  const texts = [...document.querySelectorAll('h1, li, pre, figcaption, .names span')];
  return Math.min(...texts.map((text) => {
    const [one, other] = [light(getComputedStyle(text).color), light(canvas)];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  }));
})()
"""


def written(folder: Path) -> Path:
    records = [
        call_record(
            n, at_s=n / 10, ttft_s=0.1 + n / 700, gaps_s=[0.01 + n / 9000] * 9, phases_ms={"decode": 5.0}
        )
        for n in range(200)
    ]
    result = LoadResult(records, QUIET)
    context = ["a-model at gRPC (chat)", "load: open loop, 10/s", "client on a processor, 2 cores"]
    file = folder / "load.html"
    summary = summarize(result, SummarySettings(0.0, 4.0))
    file.write_text(load_page("a-model under load", context, summary, records), "utf-8")
    return file


@pytest.mark.thorough(but="phone-dark")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_a_page_fits_every_screen_and_asks_for_nothing(
    tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    address = written(tmp_path).as_uri()
    async with page() as tab:
        await tab.look_as(size, dark=dark)
        await tab.open(address)
        assert (tab.asked, tab.troubles) == ([address], [])
        assert await tab.run("document.documentElement.scrollWidth") <= size[0]
        assert await tab.run("document.querySelectorAll('svg').length") == 6
        assert await tab.run(CONTRAST) >= READABLE
        if pictures := os.environ.get("PENSTOCK_TEST_PICTURES"):
            name = f"load-{size[0]}-{'dark' if dark else 'light'}.png"
            (Path(pictures) / name).write_bytes(await tab.picture(whole=True))
