// The pipes between the stations of the map, drawn anew whenever these move.

import { makeSvg } from "./dom.js";

// from, to, whose colour, and the sides on a wide map; a narrow one goes from each station to the next below.
const WIDE = [
  ["gateway", "tokenizer", "gateway", "right", "left"],
  ["gateway", "retriever", "retriever", "top", "left"],
  ["retriever", "tokenizer", "retriever", "bottom", "top"],
  ["tokenizer", "prefill", "tokenizer", "right", "left"],
  ["prefill", "decode", "prefill", "right", "left"],
  ["speculator", "decode", "speculator", "bottom", "top"],
  ["decode", "detokenizer", "decode", "right", "left"],
  ["detokenizer", "gateway", "detokenizer", "bottom", "bottom"],
];
const CORNER = 10;
const BELOW = 22;

// `flows(role)`: 0 nothing goes there, up to 3.
export function drawPipes(svg, stations, flows) {
  const frame = svg.getBoundingClientRect();
  const places = new Map(stations.map(([role, element]) => [role, placeIn(frame, element)]));
  const narrow = places.get("gateway").left === places.get("tokenizer").left;
  const pipes = narrow ? downwards(stations) : WIDE;
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const drawn = pipes.map(([from, to, hue, out, into]) => {
    const line = path(places.get(from), places.get(to), out, into);
    return { line, hue, flow: Math.min(flows(from), flows(to)) };
  });
  const walls = drawn.map(({ line }) => makeSvg("path", { d: line, class: "wall" }));
  const beds = drawn.map(({ line }) => makeSvg("path", { d: line, class: "bed" }));
  const water = drawn.map(({ line, hue, flow }) => makeSvg("path", { d: line, class: `water hue-${hue}${speed(flow)}` }));
  svg.replaceChildren(...walls, ...beds, ...water);
}

const speed = (flow) => ["", " flows", " flows fast", " flows rapid"][flow];

function placeIn(frame, element) {
  const box = element.getBoundingClientRect();
  const [left, top] = [box.left - frame.left, box.top - frame.top];
  return { left, top, right: left + box.width, bottom: top + box.height, x: left + box.width / 2, y: top + box.height / 2 };
}

function downwards(stations) {
  const pairs = stations.slice(1).map(([role], index) => [stations[index][0], role]);
  return pairs.map(([from, to]) => [from, to, from, "bottom", "top"]);
}

function path(from, to, out, into) {
  if (out === "right") return `M${from.right} ${from.y} H${to.left}`;
  if (out === "top") {
    return `M${from.x} ${from.top} V${to.y + CORNER} Q${from.x} ${to.y} ${from.x + CORNER} ${to.y} H${to.left}`;
  }
  if (into === "top") return `M${from.x} ${from.bottom} V${to.top}`;
  const low = Math.max(from.bottom, to.bottom) + BELOW;
  return (
    `M${from.x} ${from.bottom} V${low - CORNER} Q${from.x} ${low} ${from.x - CORNER} ${low} ` +
    `H${to.x + CORNER} Q${to.x} ${low} ${to.x} ${low - CORNER} V${to.bottom}`
  );
}
