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
