// The chat: what is asked goes out with the conversation before it, and the answer streams in.

import { cancel, Refused, streamChat } from "./api.js";
import { Answer } from "./answer.js";
import { byId, make } from "./dom.js";

const EXAMPLES = ["How many tokens does a block hold?", "What does the detokenizer do?", "What is the lease of a holder?"];
const LATER = 1500;
let turns = [];
let running = null;

export function openChat() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(byId("question").value.trim());
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !byId("key-dialog").open) stop();
  });
  byId("cancel").addEventListener("click", stop);
  byId("chat-clear").addEventListener("click", clear);
  const examples = EXAMPLES.map((text) => make("button", { type: "button", class: "quiet", onclick: () => ask(text) }, text));
  byId("examples").append(...examples);
}

async function ask(question) {
  if (!question || running) return;
  byId("question").value = "";
  byId("hello").hidden = true;
  const answer = new Answer();
  show(make("article", { class: "message user", "aria-label": "Question" }, make("div", { class: "text" }, question)));
  show(answer.element);
  const messages = [...turns, { role: "user", content: question }];
  let part = null;
  begin();
  try {
    await streamChat(body(messages), {
      signal: running.controller.signal,
      onBegin: (requestId) => (running.requestId = requestId),
      onChunk: (chunk) => {
        const text = chunk.choices?.[0]?.delta?.content;
        if (text) follow(() => answer.add(text));
        part = chunk.penstock?.requests?.[0] ?? part;
      },
    });
  } catch (error) {
    follow(() => answer.fail(sentence(error)));
  } finally {
    end();
    // A cancelled answer stays as far as it came, a question without any is not asked again; a new chat has neither.
    if (answer.text && answer.element.isConnected) turns = [...messages, { role: "assistant", content: answer.text }];
    follow(() => answer.end(part));
  }
}

function body(messages) {
  const asked = { model: byId("model").value || undefined, messages, penstock: { timeline: true } };
  if (byId("temperature").value) asked.temperature = Number(byId("temperature").value);
  if (byId("max-tokens").value) asked.max_tokens = Number(byId("max-tokens").value);
  if (byId("retrieval").checked) {
    const corpus = byId("corpus").value.trim();
    asked.penstock.retrieval = corpus ? { corpus } : true;
  }
  return asked;
}

function sentence(error) {
  if (error.name === "AbortError" || error.code === "cancelled") return "Cancelled.";
  return error instanceof Refused || error instanceof Error ? error.message : String(error);
}

// By its id, so that the answer ends in order; a call that has no answer yet, or none soon, is dropped.
async function stop() {
  const stopped = running;
  if (!stopped || stopped.stopping) return;
  stopped.stopping = true;
  if (!stopped.requestId) return stopped.controller.abort();
  const timer = setTimeout(() => stopped.controller.abort(), LATER);
  try {
    await cancel(stopped.requestId);
  } catch {
    stopped.controller.abort();
  } finally {
    stopped.ended.then(() => clearTimeout(timer));
  }
}

function begin() {
  let over;
  const ended = new Promise((resolve) => (over = resolve));
  running = { controller: new AbortController(), requestId: "", stopping: false, ended, over };
  byId("send").hidden = true;
  byId("cancel").hidden = false;
}

function end() {
  running.over();
  running = null;
  byId("send").hidden = false;
  byId("cancel").hidden = true;
}

function clear() {
  stop();
  turns = [];
  for (const message of byId("messages").querySelectorAll(".message")) message.remove();
  byId("hello").hidden = false;
  byId("question").focus();
}

function show(element) {
  follow(() => byId("messages").append(element), true);
}

// Change the conversation, and stay at its end if that is where the reader is.
function follow(change, always = false) {
  const log = byId("messages");
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (always || near) log.scrollTop = log.scrollHeight;
}
