// What people do with OpenAI's client for Node: what to call and where as arguments, the answer as JSON.

const OpenAI = require("openai");

const [what, url, model, embedder] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const draw = { model, seed: 7, temperature: 0.8, max_tokens: 24 };
const messages = [{ role: "user", content: "How many tokens does a block hold?" }];
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, old: { type: "boolean" } },
  required: ["name", "old"],
  additionalProperties: false,
};
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Oslo", "Rome"] }, days: { enum: [1, 2, 3] } },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
};

const calls = {
  async chat() {
    const answer = await client.chat.completions.create({ ...draw, messages });
    return { content: answer.choices[0].message.content, usage: answer.usage };
  },

  async stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    const stream = await client.chat.completions.create({ ...draw, messages, ...options });
    const found = { content: "", usage: null };
    for await (const chunk of stream) {
      found.content += chunk.choices[0]?.delta.content ?? "";
      found.usage = chunk.usage ?? found.usage;
    }
    return found;
  },

  // The client's own collector, which is strict about the order of what comes.
  async runner() {
    const runner = client.chat.completions.stream({ ...draw, messages });
    return { content: await runner.finalContent() };
  },

  async text() {
    const stream = await client.completions.create({ ...draw, prompt: "Once upon a time", stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0].text;
    return text;
  },

  async structure() {
    const response_format = { type: "json_schema", json_schema: { name: "pet", strict: true, schema } };
    const answer = await client.chat.completions.parse({ ...draw, max_tokens: 400, messages, response_format });
    return JSON.parse(answer.choices[0].message.content);
  },

  async tool() {
    const options = { max_tokens: 400, tools: [weather], tool_choice: "required", parallel_tool_calls: false };
    const runner = client.chat.completions.stream({ ...draw, messages, ...options });
    const [call] = (await runner.finalMessage()).tool_calls;
    return { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
  },

  async respond() {
    const asked = { model, input: messages[0].content, max_output_tokens: 24, temperature: 0 };
    const whole = await client.responses.create(asked);
    const stream = client.responses.stream(asked);
    let streamed = "";
    for await (const event of stream) if (event.type === "response.output_text.delta") streamed += event.delta;
    return { whole: whole.output_text, streamed, collected: (await stream.finalResponse()).output_text };
  },

  async embed() {
    const answer = await client.embeddings.create({ model: embedder, input: ["a dog", "a dog"] });
    return answer.data.map((row) => row.embedding);
  },

  async wrong() {
    try {
      await client.chat.completions.create({ ...draw, messages, temperature: -1 });
    } catch (error) {
      return { is: error instanceof OpenAI.BadRequestError, status: error.status, param: error.param };
    }
    return null;
  },

  async leave() {
    const options = { max_tokens: 1500, ignore_eos: true, stream: true };
    const stream = await client.completions.create({ ...draw, prompt: "Once upon a time", ...options });
    for await (const chunk of stream) {
      stream.controller.abort();
      return chunk.object;
    }
    return null;
  },
};

calls[what]().then((found) => console.log(JSON.stringify(found)));
