// Show the document of the interface: its operations by tag, and its schemas field by field.

import { byId, make, setText } from "./dom.js";

const METHODS = ["get", "post"];

async function start() {
  const response = await fetch("/openapi.json");
  const document_ = await response.json();
  setText(byId("version"), `${document_.info.title} ${document_.info.version}`);
  setText(byId("about"), document_.info.description);
  const tags = new Map();
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const method of METHODS) {
      const operation = methods[method];
      if (operation) tags.set(operation.tags[0], [...(tags.get(operation.tags[0]) ?? []), shown(path, method, operation)]);
    }
  }
  for (const [tag, rows] of tags) byId("operations").append(make("h2", {}, tag), ...rows);
  for (const [name, schema] of Object.entries(document_.components.schemas)) {
    byId("schemas").append(make("details", { id: `schema-${name}` }, make("summary", {}, name, make("span", {}, kindOf(schema))), make("div", { class: "inside" }, ...fieldsOf(schema))));
  }
}

function shown(path, method, operation) {
  const head = make("summary", {}, make("span", { class: `method ${method}` }, method.toUpperCase()), make("code", {}, path), make("span", {}, operation.summary), make("span", { class: "access" }, operation["x-penstock-access"]));
  const inside = make("div", { class: "inside" });
  const body = operation.requestBody?.content["application/json"]?.schema;
  if (body) inside.append(make("h3", {}, "Body"), make("p", { class: "kind" }, ...kindParts(body)));
  inside.append(make("h3", {}, "Answers"));
  const rows = Object.entries(operation.responses).map(([status, answer]) => {
    const kinds = Object.entries(answer.content).map(([type, { schema }]) => make("div", { class: "kind" }, `${type} `, ...(schema?.$ref ? kindParts(schema) : [])));
    return make("li", {}, make("code", {}, status), make("div", {}, answer.description, ...kinds));
  });
  inside.append(make("ul", { class: "fields" }, ...rows));
  return make("details", {}, head, inside);
}

function fieldsOf(schema) {
  if (!schema.properties) return [make("p", { class: "kind" }, ...kindParts(schema))];
  const needed = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties).map(([name, field]) => make("li", {}, make("span", {}, make("code", {}, name), needed.has(name) ? make("b", { title: "always there" }, " *") : null), make("div", {}, make("span", { class: "kind" }, ...kindParts(field)), field.description ? make("div", {}, field.description) : null)));
  return [make("ul", { class: "fields" }, ...rows)];
}

// The kind of a value in words, with links to the schemas that it names.
function kindParts(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return [make("a", { href: `#schema-${name}`, onclick: () => (byId(`schema-${name}`).open = true) }, name)];
  }
  if (schema.anyOf) return schema.anyOf.flatMap((each, index) => (index ? [" or ", ...kindParts(each)] : kindParts(each)));
  if (schema.items) return ["array of ", ...kindParts(schema.items), bounds(schema)];
  return [kindOf(schema) + bounds(schema)];
}

function kindOf(schema) {
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  return [schema.type ?? (schema.anyOf ? "" : "anything")].flat().join(" or ");
}

function bounds(schema) {
  const names = { minimum: "≥", exclusiveMinimum: ">", maximum: "≤", minLength: "length ≥", maxLength: "length ≤", minItems: "items ≥", maxItems: "items ≤", maxProperties: "entries ≤" };
  const said = Object.entries(names).filter(([name]) => schema[name] != null).map(([name, sign]) => `${sign} ${schema[name]}`);
  return said.length ? ` (${said.join(", ")})` : "";
}

start();
