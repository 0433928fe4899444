// The running requests and the last ones; choosing one shows its timeline.

import { byId, keep, make, setText, shownMs } from "./dom.js";
import { showTimeline } from "./waterfall.js";

const SHOWN_RUNNING = 12;
let ended = new Map();
let chosen = "";

export function showRequests(list) {
  ended = new Map(list.ended.map((request) => [request.id, request]));
  setText(byId("fact-live"), String(list.live));
  const sampled = list.left_out ? ` · ${list.left_out} not kept` : "";
  setText(byId("requests-count"), `${list.live} live${sampled}`);
  const rows = [...list.running.slice(0, SHOWN_RUNNING), ...list.ended];
  keep(byId("request-rows"), rows, (request) => request.id, makeRow, showRow);
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
