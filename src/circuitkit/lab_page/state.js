/**
 * What the reader has set, and how it becomes an address and back.
 */
import { exclude, isIn, parseCut } from "./names.js";
import { PRESETS } from "./presets.js";

/**
 * @typedef {object} State
 * @property {string} model
 * @property {number} step  of training
 * @property {string} text
 * @property {string[]} cuts  heads that are off and wires that are cut
 * @property {"zero" | "mean" | "patch"} fill  "patch" takes values from the second text
 * @property {string} [other]  the second text
 * @property {number} at  the chosen position; -1 is the last
 * @property {number} answer  the chosen token; -1 is the first choice of the intact model
 * @property {string} head  the chosen head
 * @property {string} tab
 */
/** @typedef {Record<string, number[]>} Steps  of training, by model */

export const TABS = ["parts", "score", "words", "neurons", "gates", "python"];
export const LONGEST = 20_000;

/** @param {import("./presets.js").Preset} preset @returns {State} */
export function fromPreset({ model, step, text, head, tab, without = "", fill = "zero" }) {
  return { model, step, text, head, tab, cuts: without.split(",").filter(Boolean), fill, at: -1, answer: -1, other: undefined };
}

/** @param {State} state */
export function toAddress(state) {
  const query = new URLSearchParams({ model: state.model, step: String(state.step), text: state.text, head: state.head, tab: state.tab });
  if (state.cuts.length) query.set("without", state.cuts.join(","));
  if (state.fill !== "zero") query.set("fill", state.fill);
  if (state.other !== undefined) query.set("other", state.other);
  if (state.at >= 0) query.set("at", String(state.at));
  if (state.answer >= 0) query.set("answer", String(state.answer));
  return `#lab:${query}`;
}

/**
 * The state that an address names: a preset "#lab-dursley" or all of it "#lab:text=...". What cannot be is left out.
 * @param {string} address @param {Steps} steps
 * @returns {State | null}
 */
export function fromAddress(address, steps) {
  const preset = PRESETS.find(({ id }) => address === `#lab-${id}`);
  if (preset) return fromPreset(preset);
  if (!address.startsWith("#lab:")) return null;
  const query = new URLSearchParams(address.slice(5));
  if (!query.has("text")) return null;
  const model = query.get("model") ?? "";
  const known = steps[model] ? model : "two-layer";
  const step = Number(query.get("step") || NaN); // if the address names none, the last checkpoint
  const whole = (/** @type {string} */ name) => (/^\d{1,5}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : -1);
  const head = query.get("head") ?? "";
  const tab = query.get("tab") ?? "";
  return fitting({
    model: known,
    step: steps[known].includes(step) ? step : steps[known][steps[known].length - 1],
    text: (query.get("text") ?? "").slice(0, LONGEST),
    cuts: (query.get("without") ?? "").split(",").filter(Boolean),
    fill: /** @type {State["fill"]} */ (/^(mean|patch)$/.test(query.get("fill") ?? "") ? query.get("fill") : "zero"),
    ...(query.has("other") ? { other: (query.get("other") ?? "").slice(0, LONGEST) } : {}),
    at: whole("at"),
    answer: whole("answer"),
    head,
    tab: TABS.includes(tab) ? tab : "parts",
  });
}

/** Whether an address names something that its state had to leave out. @param {string} address @param {State} state */
export function left(address, state) {
  const [given, read] = [address, toAddress(state)].map((one) => new URLSearchParams(one.slice(5)));
  return address.startsWith("#lab:") && ["model", "step", "head", "tab", "without", "fill"].some((name) => given.get(name) && given.get(name) !== (read.get(name) ?? "zero"));
}

/** @typedef {import("./names.js").Shape} Shape */

/** @type {Record<string, Shape>} */
const SHAPES = {
  "one-layer": { nLayers: 1, nHeads: 4 },
  "two-layer": { nLayers: 2, nHeads: 4 },
  "two-layer-mlp": { nLayers: 2, nHeads: 4, nNeurons: 512 },
  "two-layer-mlp-1": { nLayers: 2, nHeads: 4, nNeurons: 512, asHeads: 1 },
  "two-layer-mlp-5": { nLayers: 2, nHeads: 4, nNeurons: 512, asHeads: 5 },
  gated: { nLayers: 1, nHeads: 12, gated: true },
};

/** The shape of a model of the book. @param {string} model @returns {Shape} */
export function shapeOf(model) {
  return SHAPES[model] ?? { nLayers: 0, nHeads: 4 };
}

/** Whether a model has something for a panel. @param {string} tab @param {Shape} shape */
export function hasTab(tab, { nNeurons = 0, gated = false }) {
  return { neurons: nNeurons > 0, gates: gated }[tab] ?? true;
}

/**
 * A state whose heads and wires are those of its model.
 * @param {State} state @param {Shape} [shape]
 * @returns {State}
 */
export function fitting(state, shape = shapeOf(state.model)) {
  const { nLayers, nHeads } = shape;
  // Of two names that exclude each other, the later one holds.
  const cuts = [...new Set(state.cuts)].filter((name, i, all) => isIn(name, shape) && !all.some((other, k) => k > i && exclude(name, other)));
  const head = parseCut(state.head);
  const fits = head && !head.to && isIn(state.head, shape);
  const tab = hasTab(state.tab, shape) ? state.tab : shape.gated ? "gates" : "parts";
  const fill = state.fill === "patch" && state.other === undefined ? "zero" : state.fill;
  return { ...state, cuts, fill, tab, head: fits ? state.head : nLayers ? `L${nLayers - 1}H${nLayers === 2 && nHeads === 4 ? 3 : 0}` : "" };
}
