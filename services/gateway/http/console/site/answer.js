// One answer of the chat: its text as it comes, its citations and passages, what it took.

import { make, shownMs } from "./dom.js";
import { mark } from "./requests.js";
import { showTimeline } from "./waterfall.js";

const CITATION = /\[([1-9][0-9]?)\]/g;

export class Answer {
  constructor() {
    this.text = "";
    this.writing = document.createTextNode("");
    this.place = make("div", { class: "text" }, this.writing);
    this.element = make("article", { class: "message answer", "aria-label": "Answer", "aria-busy": "true" }, this.place);
  }

  add(text) {
    this.text += text;
    this.writing.appendData(text);
  }

  fail(sentence) {
    this.element.append(make("p", { class: "failed", role: "alert" }, sentence));
  }

  // `part`: what the gateway says of the request at its end, if it came to that.
  end(part) {
    this.element.setAttribute("aria-busy", "false");
    if (!part) return;
    const passages = part.passages ?? [];
    if (passages.length) this.cite(passages);
    for (const note of [part.degraded && `left out under pressure: ${part.degraded}`, part.warning].filter(Boolean)) {
      this.element.append(make("p", { class: "stats" }, note));
    }
    if (part.timeline) this.element.append(this.stats(part));
  }

  cite(passages) {
    const sources = new Map();
    const rows = [...passages].sort((a, b) => (a.prompt_place || 99) - (b.prompt_place || 99)).map((passage) => {
      const place = passage.prompt_place;
      const head = place ? `[${place}] ${passage.source}` : passage.source;
      const source = make("p", { class: "source" }, head, place ? null : make("span", { class: "unused" }, " · not in the prompt"));
      const row = make("li", { tabindex: "-1" }, source, make("p", { class: "passage" }, passage.text));
      if (place) sources.set(place, row);
      return row;
    });
    const details = make("details", { class: "sources" }, make("summary", {}, `${passages.length} passages`), make("ol", {}, ...rows));
    this.place.replaceChildren(...this.pieces(sources, details));
    this.element.append(details);
  }

  pieces(sources, details) {
    const made = [];
    let read = 0;
    for (const found of this.text.matchAll(CITATION)) {
      const row = sources.get(Number(found[1]));
      if (!row) continue;
      made.push(this.text.slice(read, found.index));
      read = found.index + found[0].length;
      made.push(make("button", { type: "button", class: "cite", "aria-label": `Passage ${found[1]}`, onclick: () => showRow(row, details) }, found[0]));
    }
    return [...made, this.text.slice(read)];
  }

  stats(part) {
    const { timeline, usage } = part;
    const after_s = (timeline.total_us - timeline.ttft_us) / 1e6;
    const speed = usage.completion_tokens > 1 && after_s > 0 ? `${Math.round((usage.completion_tokens - 1) / after_s)} tok/s` : "";
    const request = { id: part.request_id, ...timeline, prompt_tokens: usage.prompt_tokens, cached_tokens: usage.cached_tokens, tokens: usage.completion_tokens, replacements: usage.replacements };
    const show = () => {
      mark(part.request_id);
      showTimeline(request);
    };
    show();
    const facts = [`TTFT ${shownMs(timeline.ttft_us)}`, `${usage.completion_tokens} tokens`, speed, usage.cached_tokens ? `${usage.cached_tokens} of ${usage.prompt_tokens} cached` : ""];
    return make("div", { class: "stats" }, ...facts.filter(Boolean).map((fact) => make("span", {}, fact)), make("button", { type: "button", class: "quiet", onclick: show }, "Timeline"));
  }
}

function showRow(row, details) {
  details.open = true;
  for (const other of details.querySelectorAll(".cited")) other.classList.remove("cited");
  row.classList.add("cited");
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}
