// What an answer rests on: its passages, and in its text a mark behind each sentence that one of them supports.

import { make } from "./dom.js";

const WRITTEN = /\[([1-9][0-9]?)\]/g;
const UNSUPPORTED = "no passage that was found says so";

// `text`: the answer; `citations`: its sentences, in characters, with the words of passages that support them.
export function citedAnswer(text, passages, citations) {
  const rows = new Map();
  const ordered = [...passages].sort((a, b) => (a.prompt_place || 99) - (b.prompt_place || 99));
  const list = make("ol", {}, ...ordered.map((passage) => passageRow(passage, rows)));
  const details = make("details", { class: "sources" }, make("summary", {}, `${passages.length} passage${passages.length === 1 ? "" : "s"}`), list);
  return { pieces: [...sentences(text, citations, rows, details)], details };
}

function passageRow(passage, rows) {
  const place = passage.prompt_place;
  const head = place ? `[${place}] ${passage.source}` : passage.source;
  const source = make("p", { class: "source" }, head, place ? null : make("span", { class: "unused" }, " · not in the prompt"));
  const words = make("p", { class: "passage" }, passage.text);
  const row = make("li", { tabindex: "-1" }, source, words);
  if (place) rows.set(place, { row, words, chars: [...passage.text] });
  return row;
}

function* sentences(text, citations, rows, details) {
  const chars = [...text];
  let read = 0;
  for (const each of [...citations].sort((a, b) => a.start - b.start)) {
    if (each.start < read || each.end > chars.length) continue;
    yield* written(chars.slice(read, each.start).join(""), rows, details);
    const sentence = chars.slice(each.start, each.end).join("");
    read = each.end;
    if (!each.prompt_place) {
      yield make("span", { class: "unsupported", title: UNSUPPORTED }, ...written(sentence, rows, details));
      continue;
    }
    yield* written(sentence, rows, details);
    const found = rows.get(each.prompt_place);
    if (found && !sentence.includes(`[${each.prompt_place}]`)) yield mark(each.prompt_place, found, details, each);
  }
  yield* written(chars.slice(read).join(""), rows, details);
}

// A text with the marks that the model itself has written.
function* written(text, rows, details) {
  let read = 0;
  for (const match of text.matchAll(WRITTEN)) {
    const found = rows.get(Number(match[1]));
    if (!found) continue;
    yield text.slice(read, match.index);
    yield mark(Number(match[1]), found, details, null);
    read = match.index + match[0].length;
  }
  yield text.slice(read);
}

function mark(place, found, details, words) {
  return make("button", { type: "button", class: "cite", "aria-label": `Passage ${place}`, onclick: () => show(found, details, words) }, `[${place}]`);
}

// `words`: the part of the passage that supports a sentence; null: all of it.
function show({ row, words: shown, chars }, details, words) {
  details.open = true;
  for (const other of details.querySelectorAll(".cited")) other.classList.remove("cited");
  row.classList.add("cited");
  const [start, end] = words ? [words.passage_start, words.passage_end] : [0, 0];
  const marked = make("mark", {}, chars.slice(start, end).join(""));
  shown.replaceChildren(chars.slice(0, start).join(""), ...(start < end ? [marked] : []), chars.slice(end).join(""));
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
  if (start < end) marked.scrollIntoView({ block: "nearest" });
}
