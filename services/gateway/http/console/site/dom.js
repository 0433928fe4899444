// Make and change elements. Text of models, documents and names is set as text alone, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// An element with attributes (`class`, `title`, …), listeners (`onclick`) and children: elements or texts.
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function makeSvg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Bring the children of `parent` in line with `items`: one element each, by key, kept while its key is there.
// `create(item)` makes one, `update(element, item)` says what is so now.
export function keep(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].filter((child) => child.dataset.key != null).map((child) => [child.dataset.key, child]));
  let place = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = known.get(key);
    known.delete(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    const next = place ? place.nextElementSibling : firstKept(parent);
    if (next !== element) parent.insertBefore(element, next);
    update(element, item);
    place = element;
  }
  for (const gone of known.values()) gone.remove();
}

function firstKept(parent) {
  return [...parent.children].find((child) => child.dataset.key != null) ?? null;
}

export function shownMs(us) {
  if (us == null) return "–";
  const ms = us / 1000;
  if (ms >= 10000) return `${(ms / 1000).toFixed(1)} s`;
  return ms >= 100 ? `${ms.toFixed(0)} ms` : ms >= 1 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(2)} ms`;
}

export function shownCount(count) {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)}M`;
  if (count >= 1e4) return `${(count / 1e3).toFixed(0)}k`;
  if (count >= 1e3) return `${(count / 1e3).toFixed(1)}k`;
  return Number.isInteger(count) ? String(count) : count.toFixed(1);
}
