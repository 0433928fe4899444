"""The console in a browser: `python -m tests.bench.bench_console_page [--runs N]`.

Each run is a Chromium with a new, empty profile before a gateway with a scripted fleet, in the same process.
Printed are the milliseconds from the navigation on: the answer, the first paint, the page as it stands, and
the first instances in the picture of the pipeline; cold, and when the same tab loads the page again; and what
was loaded for it. `floor` is the first paint of a page of one line in another such browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
from typing import Any

import structlog

from shared.bus.nats_server import NatsServer
from tests.integration.http_edge import edge
from tests.support.browser import DESKTOP, Page, page

WATCH = """
window.shownAt = {};
new MutationObserver(() => {
  if (!window.shownAt.data && document.querySelector('.instance')) window.shownAt.data = performance.now();
}).observe(document, { childList: true, subtree: true });
"""
TIMES = """
(() => {
  const [went] = performance.getEntriesByType('navigation');
  const paint = performance.getEntriesByName('first-contentful-paint')[0]?.startTime;
  const answered = went.responseEnd, stands = went.domContentLoadedEventEnd;
  const parts = performance.getEntriesByType('resource').filter((part) => part.startTime < stands);
  const bytes = [went, ...parts].reduce((sum, part) => sum + part.transferSize, 0);
  return { answered, paint, stands, data: window.shownAt.data, requests: 1 + parts.length, bytes };
})()
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
PAINTED = "performance.getEntriesByName('first-contentful-paint').length"
SHOWN = "window.shownAt?.data && performance.getEntriesByName('first-contentful-paint').length"


async def look(tab: Page, url: str) -> dict[str, float]:
    await tab.open(url)
    await tab.until(SHOWN)
    return dict(await tab.run(TIMES))


async def measure(runs: int) -> dict[str, Any]:
    server = NatsServer()
    await server.start()
    readings: dict[str, list[dict[str, float]]] = {"cold": [], "again": [], "floor": []}
    try:
        async with edge(server.url) as here:
            url = f"http://{here.running.http.address}/"
            for _ in range(runs):
                async with page() as tab:
                    await tab.look_as(DESKTOP)
                    await tab.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
                    readings["cold"].append(await look(tab, url))
                    readings["again"].append(await look(tab, url))
                async with page() as tab:
                    await tab.look_as(DESKTOP)
                    await tab.open(f"{url}health")
                    await tab.until(PAINTED)
                    readings["floor"].append({"paint": await tab.run(PAINT)})
    finally:
        await server.stop()
    return {kind: _spread(each) for kind, each in readings.items()}


def _spread(readings: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    columns = {name: [reading[name] for reading in readings] for name in readings[0]}
    return {
        name: {"min": round(min(values), 1), "median": round(statistics.median(values), 1)}
        for name, values in columns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(asyncio.run(measure(parser.parse_args().runs)), indent=2))


if __name__ == "__main__":
    main()
