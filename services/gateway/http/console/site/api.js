// Ask the gateway. The key stays in this tab's session storage and goes out as Authorization alone.

const STORED = "penstock.key";

export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

export const key = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => (value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED)),
};

function headers(more = {}) {
  return key.get() ? { ...more, Authorization: `Bearer ${key.get()}` } : more;
}

export async function get(path) {
  return read(await fetch(path, { headers: headers(), cache: "no-store" }));
}

async function read(response) {
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) return body;
  const error = body?.error ?? { message: `the gateway answered ${response.status}`, code: "unknown" };
  throw new Refused(response.status, error);
}

export async function cancel(requestId) {
  const path = `/v1/requests/${encodeURIComponent(requestId)}/cancel`;
  return read(await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/json" }) }));
}

// Ask for a chat as a stream: `onBegin(requestId)`, then `onChunk(chunk)` for each event. `signal` drops the call.
export async function streamChat(body, { onBegin, onChunk, signal }) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) return read(response);
  onBegin(response.headers.get("x-request-id") ?? "");
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(response.status, chunk.error);
    onChunk(chunk);
  }
  throw new Error("the answer was cut: the connection to the gateway was lost");
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n");
    left = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice("data: ".length);
  }
}
