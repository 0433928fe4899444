// The models, adapters and corpora that are served, also as what a chat may choose from.

import { byId, make, shownCount } from "./dom.js";

let shown = "";

export function showModels(models) {
  const said = JSON.stringify(models);
  if (said === shown) return;
  shown = said;
  const adapters = models.filter((model) => model.parent);
  const bare = models.filter((model) => !model.parent);
  list("models", bare.map((model) => [model.id, [model.embeds ? "makes vectors" : "generates", model.max_model_len ? `${shownCount(model.max_model_len)} tokens` : ""]]), "no model is served now");
  list("adapters", adapters.map((model) => [model.id.slice(model.parent.length + 1), [`over ${model.parent}`]]), "none");
  const generating = models.filter((model) => !model.embeds);
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(...generating.map((model) => make("option", { value: model.id }, model.id)));
  if (generating.some((model) => model.id === chosen)) select.value = chosen;
}

export function showCorpora(corpora) {
  list("corpus-list", corpora.map((corpus) => [corpus.name || "default", [`${shownCount(corpus.passages)} passages, generation ${corpus.generation}`, corpus.trouble]]), "none");
  const named = corpora.filter((corpus) => corpus.name);
  const options = byId("corpora");
  if (options.children.length !== named.length) options.replaceChildren(...named.map((corpus) => make("option", { value: corpus.name })));
}

function list(id, rows, none) {
  const made = rows.map(([name, notes]) => make("li", {}, name, ...notes.filter(Boolean).map((note) => make("small", {}, note))));
  byId(id).replaceChildren(...(made.length ? made : [make("li", { class: "aside" }, none)]));
}
