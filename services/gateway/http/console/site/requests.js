// The running requests and those that have ended: the latest, or the worst of the last minutes. Choosing one shows
// its timeline.

import { byId, keep, make, setText, shownMs } from "./dom.js";
import { showTimeline } from "./waterfall.js";

const SHOWN_RUNNING = 12;
// The name of a view in the answer, its name here, and what comes first in it.
const VIEWS = [
  ["latest", "Latest", (request) => request.ended_unix_ms],
  ["failed", "Failed", (request) => request.ended_unix_ms],
  ["slow_start", "Slow start", (request) => request.ttft_us],
  ["slow", "Slow", (request) => request.total_us],
];
let ended = new Map();
let chosen = "";
let view = 0;
let last = null;

export function openRequests() {
  for (const [index, [, name]] of VIEWS.entries()) {
    byId("request-views").append(make("button", { type: "button", "aria-pressed": String(index === view), onclick: () => look(index) }, name));
  }
}

function look(index) {
  view = index;
  for (const [place, button] of [...byId("request-views").children].entries()) button.setAttribute("aria-pressed", String(place === index));
  if (last) showRequests(last);
}

export function showRequests(list) {
  last = list;
  ended = new Map(list.ended.map((request) => [request.id, request]));
  setText(byId("fact-live"), String(list.live));
  setText(byId("requests-silent"), list.silent.length ? `${list.silent.join(", ")} did not answer: what they have is missing here` : "");
  const [name, , order] = VIEWS[view];
  const found = list.ended.filter((request) => request.views.includes(name)).sort((a, b) => order(b) - order(a));
  const rows = view === 0 ? [...list.running.slice(0, SHOWN_RUNNING), ...found] : found;
  keep(byId("request-rows"), rows, (request) => request.id, makeRow, showRow);
  byId("requests-empty").hidden = rows.length > 0;
}

export function mark(requestId) {
  chosen = requestId;
  for (const row of byId("request-rows").children) row.classList.toggle("chosen", row.dataset.key === chosen);
}

function choose(requestId) {
  const request = ended.get(requestId);
  if (!request) return;
  mark(requestId);
  showTimeline(request);
}

function makeRow(request) {
  const name = make("button", { type: "button", onclick: () => choose(request.id) }, make("span", { class: "dot" }), make("span", {}, request.id.split(".").pop()));
  return make("tr", {}, make("td", {}, name, make("div", { class: "of" })), make("td"), make("td"), make("td"));
}

function showRow(row, request) {
  const [first, tokens, ttft, total] = row.children;
  row.classList.toggle("chosen", request.id === chosen);
  first.querySelector(".dot").className = `dot ${request.outcome ?? "busy"}`;
  const button = first.querySelector("button");
  button.disabled = !request.outcome;
  button.setAttribute("aria-label", `Timeline of ${request.id}, ${request.outcome ?? request.phase}`);
  const of = [request.outcome ?? request.phase, request.tenant, request.model, request.error].filter(Boolean);
  setText(first.querySelector(".of"), of.join(" · "));
  setText(tokens, `${request.prompt_tokens}→${request.tokens}`);
  setText(ttft, request.outcome ? shownMs(request.ttft_us) : "");
  setText(total, request.outcome ? shownMs(request.total_us) : "");
}
