/**
 * The names of heads and wires: all that the page and the worker share.
 */

/** @typedef {{layer: number, head: number, to?: {layer: number, head: number, input: string}}} Cut */

export const INPUTS = ["Q", "K", "V"];

/** @param {number} layer @param {number} head */
export function headName(layer, head) {
  return `L${layer}H${head}`;
}

/**
 * @param {string} name
 * @returns {Cut | null} null where it names nothing
 */
export function parseCut(name) {
  const found = /^L(\d\d?)H(\d\d?)(?:->L(\d\d?)H(\d\d?)\.([QKV]))?$/.exec(name);
  if (!found) return null;
  const [layer, head, toLayer, toHead] = found.slice(1, 5).map(Number);
  return found[5] ? { layer, head, to: { layer: toLayer, head: toHead, input: found[5] } } : { layer, head };
}

/** @typedef {{layer: number, kind: "H" | "N" | "MLP", number: number}} Place  a head, a neuron, or a whole MLP */
/** @typedef {{from: Place, to: Place | null, input: string, reader: string}} Named  what is switched off, or a wire and the input that it enters */
/** @typedef {{nLayers: number, nHeads: number, nNeurons?: number, asHeads?: number, gated?: boolean}} Shape  `asHeads`: of how many heads a neuron consists */

/**
 * Any name: of a head, a neuron or an MLP, or of a wire between heads and neurons.
 * @param {string} name
 * @returns {Named | null}
 */
export function parseName(name) {
  const [first, reader = "", ...more] = name.split("->");
  const place = (/** @type {string} */ text) => {
    const found = /^L(\d\d?)(?:([HN])(\d{1,4})| (MLP))$/.exec(text);
    return found && { layer: Number(found[1]), kind: /** @type {Place["kind"]} */ (found[2] ?? found[4]), number: Number(found[3] ?? 0) };
  };
  const [entered, input = ""] = reader.split(".");
  const [from, to] = [place(first), place(entered)];
  if (!from || more.length || (reader && (!to || to.kind === "MLP" || !/^[QKV]?$/.test(input)))) return null;
  return { from, to, input, reader };
}

/** The head whose gate is forced open or shut, "L0H6 open". @param {string} name */
export function parseGate(name) {
  const found = /^(L\d\d?H\d\d?) (open|shut)$/.exec(name);
  return found && { head: found[1], open: found[2] === "open" };
}

/**
 * The wires of a neuron: from the heads that write before it reads, and to the heads of later layers.
 * @param {string} neuron @param {Shape} shape
 */
export function wiresOf(neuron, { nLayers, nHeads, asHeads = 0 }) {
  const { layer } = /** @type {Named} */ (parseName(neuron)).from;
  const heads = (/** @type {number} */ from, /** @type {number} */ to) =>
    Array.from({ length: (to - from) * nHeads }, (_, i) => headName(from + Math.floor(i / nHeads), i % nHeads));
  const sides = asHeads ? [".Q", ".V"] : [""];
  return {
    into: heads(0, layer + 1).flatMap((head) => sides.map((side) => `${head}->${neuron}${side}`)),
    out: heads(layer + 1, nLayers).flatMap((head) => INPUTS.map((input) => `${neuron}->${head}.${input}`)),
  };
}

/** Whether two names exclude each other: an MLP and its neurons, or two settings of one gate. @param {string} one @param {string} other */
export function exclude(one, other) {
  const [a, b] = [parseGate(one), parseGate(other)];
  if (a && b) return a.head === b.head;
  const inside = (/** @type {string} */ mlp, /** @type {string} */ name) => /^L\d+ MLP$/.test(mlp) && name.split("->").some((part) => part.startsWith(`${mlp.split(" ")[0]}N`));
  return inside(one, other) || inside(other, one);
}

/** Whether a model has what a name names. @param {string} name @param {Shape} shape */
export function isIn(name, { nLayers, nHeads, nNeurons = 0, asHeads = 0, gated = false }) {
  const gate = parseGate(name);
  const named = parseName(gate ? gate.head : name);
  if (!named || (gate && !gated)) return false;
  const { from, to, input } = named;
  const there = (/** @type {Place} */ { layer, kind, number }) => layer < nLayers && number < { H: nHeads, N: nNeurons, MLP: Math.min(nNeurons, 1) }[kind];
  if (!there(from) || !to) return there(from);
  // An MLP reads what the heads of its own layer have written.
  const later = to.layer > from.layer || (to.layer === from.layer && from.kind === "H" && to.kind === "N");
  return there(to) && later && (to.kind === "H" ? input !== "" : !input || (asHeads > 0 && input !== "K"));
}

/**
 * The names of all heads and wires of a model, those that reach the last layer first.
 * @param {number} nLayers @param {number} nHeads
 */
export function allNames(nLayers, nHeads) {
  const heads = (/** @type {number} */ layer) => Array.from({ length: nHeads }, (_, head) => headName(layer, head));
  /** @type {string[]} */
  const names = [];
  for (let layer = nLayers - 1; layer >= 0; layer--) {
    names.push(...heads(layer));
    for (let from = layer - 1; from >= 0; from--)
      for (const writer of heads(from)) for (const to of heads(layer)) for (const input of INPUTS) names.push(`${writer}->${to}.${input}`);
  }
  return names;
}
