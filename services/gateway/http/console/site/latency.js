// Percentiles and rates of the last minutes.

import { byId, make, makeSvg, setText, shownCount, shownMs } from "./dom.js";

let chosen = 0;
let last = null;

export function openLatency() {
  for (const [index, name] of ["1 min", "5 min"].entries()) {
    byId("windows").append(make("button", { type: "button", "aria-pressed": String(index === chosen), onclick: () => choose(index) }, name));
  }
}

function choose(index) {
  chosen = index;
  for (const [place, button] of [...byId("windows").children].entries()) button.setAttribute("aria-pressed", String(place === index));
  if (last) showLatency(last);
}

export function showLatency(latency) {
  last = latency;
  const window = latency.windows[chosen];
  byId("percentiles").replaceChildren(row("First token", window.ttft), row("Between tokens", window.inter_token));
  const outcomes = Object.entries(window.outcomes).map(([word, count]) => `${shownCount(count)} ${word}`);
  setText(byId("outcomes"), outcomes.length ? outcomes.join(" · ") : "no request has ended in this time");
  chart(byId("chart-tokens"), "tokens/s", latency.tokens, latency.slot_s);
  chart(byId("chart-requests"), "requests/s", latency.requests, latency.slot_s);
  const whole = latency.tokens.length - 1;
  setText(byId("fact-tokens"), shownCount(rate(latency.tokens.slice(whole - 2, whole), latency.slot_s)));
  setText(byId("fact-requests"), shownCount(rate(latency.requests.slice(whole - 2, whole), latency.slot_s)));
  setText(byId("fact-ttft"), latency.windows[0].ttft.count ? shownMs(latency.windows[0].ttft.p50_ms * 1000) : "–");
}

const rate = (counts, slot_s) => Math.round((10 * counts.reduce((sum, count) => sum + count, 0)) / (counts.length * slot_s)) / 10;

function row(name, percentiles) {
  const shown = (ms) => (percentiles.count ? (ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)) : "–");
  const cells = [shown(percentiles.p50_ms), shown(percentiles.p95_ms), shown(percentiles.p99_ms), shownCount(percentiles.count)];
  return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => make("td", {}, text)));
}

function chart(place, name, counts, slot_s) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((count, index) => {
    const height = count ? Math.max(1, (44 * count) / most) : 0;
    return makeSvg("rect", { x: index * 5, y: 45 - height, width: 4, height, rx: 1, class: index === counts.length - 1 ? "now" : "" });
  });
  const said = `at most ${shownCount(Math.round((10 * Math.max(...counts)) / slot_s) / 10)}`;
  const picture = makeSvg("svg", { viewBox: `0 0 ${counts.length * 5} 46`, preserveAspectRatio: "none", role: "img", "aria-label": `${name} of the last 5 minutes, ${said}` }, makeSvg("line", { x1: 0, y1: 45.5, x2: counts.length * 5, y2: 45.5 }), ...bars);
  place.replaceChildren(make("p", {}, make("span", {}, name), make("b", {}, said)), picture);
}
