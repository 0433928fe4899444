// One answer of the chat: its text as it comes, its citations and passages, what it took.

import { citedAnswer } from "./citations.js";
import { make, shownMs } from "./dom.js";
import { mark } from "./requests.js";
import { showTimeline } from "./waterfall.js";

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
    if (part.passages?.length) {
      const { pieces, details } = citedAnswer(this.text, part.passages, part.citations ?? []);
      this.place.replaceChildren(...pieces);
      this.element.append(details);
    }
    for (const note of [part.degraded && `left out under pressure: ${part.degraded}`, part.warning].filter(Boolean)) {
      this.element.append(make("p", { class: "stats" }, note));
    }
    if (part.timeline) this.element.append(this.stats(part));
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
