// The page: whose key it is, then the chat, and for operators what the fleet does, again and again.

import { get, key, Refused } from "./api.js";
import { openChat } from "./chat.js";
import { byId, setText } from "./dom.js";
import { openLatency, showLatency } from "./latency.js";
import { openPipeline, showPipeline } from "./pipeline.js";
import { openRequests, showRequests } from "./requests.js";
import { showCorpora, showModels } from "./served.js";

// Where the gateway takes calls without a key, all may see everything; the page says so without being asked.
const EVERYBODY = { keys: false, tenant: "", operator: true };
const LOOK_MS = 1000;
const LOST_MS = 4000;
let access = document.body.dataset.keys === "none" ? EVERYBODY : null;
let timer = 0;

function start() {
  openChat();
  openPipeline();
  openLatency();
  openRequests();
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(byId("key").value.trim());
    byId("key").value = "";
    byId("key-dialog").close();
    access = null;
    look();
  });
  byId("key-button").addEventListener("click", () => askForKey(""));
  document.addEventListener("visibilitychange", () => document.hidden || look());
  look();
}

async function look() {
  clearTimeout(timer);
  if (!access && !key.get()) return askForKey("");
  let pause = LOOK_MS;
  try {
    access ??= await enter();
    await (access.operator ? lookAtAll() : lookAtModels());
    link("live", access.tenant || "live");
  } catch (error) {
    pause = LOST_MS;
    if (error instanceof Refused && error.status === 401) return askForKey(key.get() ? error.message : "");
    link("lost", error instanceof Refused ? error.message : "no connection to the gateway");
  }
  if (!document.hidden) timer = setTimeout(look, pause);
}

async function enter() {
  const found = await get("/console/access");
  byId("key-button").hidden = !found.keys;
  byId("operators-only").hidden = found.operator;
  for (const part of document.querySelectorAll(".for-operators")) part.hidden = !found.operator;
  return found;
}

async function lookAtAll() {
  const [picture, requests] = await Promise.all([get("/console/pipeline"), get("/console/requests"), lookAtModels()]);
  showPipeline(picture);
  showLatency(picture.latency);
  showCorpora(picture.corpora);
  showRequests(requests);
}

async function lookAtModels() {
  showModels((await get("/v1/models")).data);
}

function askForKey(refused) {
  link("waiting", "a key is needed");
  byId("key-button").hidden = false;
  setText(byId("key-refused"), refused);
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

function link(state, text) {
  byId("link").dataset.state = state;
  setText(byId("link"), text.length > 60 ? `${text.slice(0, 60)}…` : text);
}

start();
