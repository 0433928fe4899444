// The timeline of one request: its phases one below another, each where it lay.

import { byId, make, setText, shownMs } from "./dom.js";
import { hopOf } from "./hops.js";

// `request`: id, total_us, ttft_us, phases, and what else is known of it.
export function showTimeline(request) {
  byId("timeline-empty").hidden = true;
  setText(byId("timeline-name"), request.id);
  const rows = request.phases.map((phase) => row(phase, request));
  byId("waterfall").replaceChildren(...rows, sum(request));
}

function row(phase, request) {
  const whole = Math.max(1, request.total_us);
  const bar = make("span", { class: `bar hue-${hopOf(phase.name)}` });
  bar.style.left = `${(100 * phase.start_us) / whole}%`;
  bar.style.width = `${(100 * phase.duration_us) / whole}%`;
  const track = make("span", { class: "track", "aria-hidden": "true" }, bar);
  if (request.ttft_us) {
    const first = make("span", { class: "first" });
    first.style.left = `${(100 * request.ttft_us) / whole}%`;
    track.append(first);
  }
  const lasts = make("span", { class: "lasts" }, shownMs(phase.duration_us));
  const begins = `${phase.name} of ${hopOf(phase.name)}, from ${shownMs(phase.start_us)} on`;
  return make("li", { title: begins }, make("span", {}, phase.name), track, lasts);
}

function sum(request) {
  const parts = [
    ["first token", shownMs(request.ttft_us)],
    ["total", shownMs(request.total_us)],
    ["prompt", `${request.prompt_tokens ?? 0}, ${request.cached_tokens ?? 0} cached`],
    ["tokens", String(request.tokens ?? 0)],
  ];
  if (request.replacements) parts.push(["routed anew", `${request.replacements}×`]);
  for (const { role, instance } of request.route ?? []) if (role !== "detokenizer") parts.push([role, instance]);
  const made = parts.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)));
  return make("li", { class: "sum" }, ...made);
}
