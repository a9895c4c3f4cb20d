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
  const found = /^L(\d)H(\d)(?:->L(\d)H(\d)\.([QKV]))?$/.exec(name);
  if (!found) return null;
  const [layer, head, toLayer, toHead] = found.slice(1, 5).map(Number);
  return found[5] ? { layer, head, to: { layer: toLayer, head: toHead, input: found[5] } } : { layer, head };
}
