// The pipeline as a picture: a station for each role, its instances with what they hold, the pipes between them.

import { byId, keep, make, setText, shownCount } from "./dom.js";
import { drawPipes } from "./pipes.js";

const ORDER = ["gateway", "retriever", "tokenizer", "prefill", "decode", "speculator", "detokenizer"];
const SHOWN = 6;
const stations = new Map();
let rates = new Map();

export function openPipeline() {
  for (const role of ORDER) {
    const station = make("section", { class: `station hue-${role}`, "aria-label": role }, make("h3", {}, role, make("span", { title: "tokens a second" })), make("div", { class: "instances" }), make("p", { class: "more", hidden: true }));
    station.style.gridArea = role;
    stations.set(role, station);
    byId("map").append(station);
  }
  new ResizeObserver(draw).observe(byId("map"));
}

export function showPipeline(picture) {
  const recent = picture.latency.tokens.slice(-3);
  const perSecond = recent.reduce((sum, count) => sum + count, 0) / (recent.length * picture.latency.slot_s);
  for (const role of ORDER) {
    const found = picture.instances.filter((instance) => instance.role === role);
    rates.set(role, found.length ? flowOf(found, perSecond) : 0);
    showStation(stations.get(role), found);
  }
  showLevels(picture.degradation);
  draw();
}

// How much goes through a role: by what is live there now, or was written to clients just now.
function flowOf(instances, perSecond) {
  const live = instances.reduce((sum, each) => sum + each.live + each.queued, 0);
  const amount = Math.max(perSecond, live);
  return amount >= 200 ? 3 : amount >= 20 ? 2 : amount > 0 ? 1 : 0;
}

function showStation(station, instances) {
  station.classList.toggle("absent", instances.length === 0);
  setText(station.querySelector("h3 span"), headline(instances));
  const busiest = [...instances].sort((a, b) => unwell(b) - unwell(a) || a.instance.localeCompare(b.instance, "en", { numeric: true }));
  keep(station.querySelector(".instances"), busiest.slice(0, SHOWN), (each) => each.instance, makeInstance, showInstance);
  const more = station.querySelector(".more");
  more.hidden = instances.length <= SHOWN;
  setText(more, `and ${instances.length - SHOWN} more`);
}

function headline(instances) {
  if (!instances.length) return "none";
  const speed = instances.reduce((sum, each) => sum + (each.engine?.tokens_per_s ?? 0), 0);
  if (speed) return `${shownCount(Math.round(speed))}/s`;
  return instances.length > 1 ? `×${instances.length}` : "";
}

const unwell = (instance) => (instance.state !== "ready" || instance.breaker ? 1 : 0);

function makeInstance(instance) {
  return make("div", { class: "instance" }, make("p", { class: "name" }, make("span", { class: "dot" }), make("b", {}, instance.instance), make("span", { class: "trouble" })), meter("load"), meter("KV"), meter("wait"));
}

function meter(name) {
  return make("p", { class: "meter", "data-meter": name }, make("span", {}, name), make("i", {}, make("b")), make("span", { class: "value" }));
}

function showInstance(element, instance) {
  const dot = element.querySelector(".dot");
  const state = instance.breaker || (instance.state === "ready" && instance.live ? "busy" : instance.state);
  dot.className = `dot ${state}`;
  setText(element.querySelector(".trouble"), instance.breaker ? `breaker ${instance.breaker}` : instance.state === "ready" ? "" : instance.state);
  showMeter(element, "load", instance.live, instance.capacity, `${instance.live}/${shownCount(instance.capacity)}`);
  const engine = instance.engine;
  const used = engine ? engine.kv_blocks - engine.kv_blocks_free : 0;
  showMeter(element, "KV", used, engine?.kv_blocks ?? 0, `${engine ? Math.round((100 * used) / Math.max(1, engine.kv_blocks)) : 0}%`);
  const waiting = engine?.queued_tokens || instance.queued;
  showMeter(element, "wait", waiting, waiting ? Math.max(waiting, instance.capacity) : 0, `${shownCount(waiting)}${engine?.queued_tokens ? " tok" : ""}`);
  element.title = describe(instance);
}

function showMeter(element, name, value, whole, shown) {
  const found = element.querySelector(`[data-meter="${name}"]`);
  found.hidden = !whole;
  if (!whole) return;
  const share = Math.min(1, value / whole);
  found.classList.toggle("full", share >= 0.95);
  found.querySelector("i b").style.width = `${100 * share}%`;
  setText(found.querySelector(".value"), shown);
}

function describe(instance) {
  const engine = instance.engine;
  const parts = [`${instance.instance} on ${instance.host}, process ${instance.pid}`, instance.model, `${instance.state}`];
  if (engine) parts.push(`${engine.backend}, ${engine.threads} threads`, `${engine.tokens_per_s} tokens/s, at best ${engine.best_tokens_per_s}`);
  if (engine?.step_us) parts.push(`a step takes ${(engine.step_us / 1000).toFixed(1)} ms`);
  if (instance.stalled_ms) parts.push(`has not moved for ${instance.stalled_ms} ms`);
  if (instance.reconnects) parts.push(`reconnected ${instance.reconnects} times`);
  return parts.filter(Boolean).join("\n");
}

function showLevels({ level, levels, pressure, word }) {
  const steps = levels.slice(1).map((name, index) => {
    const on = index < level;
    return make("li", { class: `${on ? "on" : ""}${on && index >= 4 ? " high" : ""}`, title: name.replaceAll("_", " ") });
  });
  const said = level ? word.replaceAll("_", " ") : "nothing left out";
  byId("levels").replaceChildren(...steps, make("li", { class: "word" }, `${said} · pressure ${pressure.toFixed(2)}`));
}

function draw() {
  drawPipes(byId("pipes"), [...stations], (role) => rates.get(role) ?? 0);
}
