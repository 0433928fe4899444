// Whose time a phase is, by the first part of its name; all that are not here are the gateway's own.

const HOPS = new Map([
  ["client", "client"],
  ["retrieve", "retriever"],
  ["cache", "retriever"],
  ["tokenize", "tokenizer"],
  ["prefill", "prefill"],
  ["detokenize", "detokenizer"],
  ["bus", "bus"],
  ["kv", "decode"],
  ["decode", "decode"],
]);

export const hopOf = (phase) => HOPS.get(phase.split(".", 1)[0]) ?? "gateway";
