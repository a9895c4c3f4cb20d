/**
 * Why a repeat is not continued: which head attends to the token that followed last time, what it adds, and what outweighs it.
 */
import { largest, logitParts } from "./analysis.js";
import { headName } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./analysis.js").Part} Part */
/**
 * @typedef {object} Failure
 * @property {number} token  that followed the earlier occurrence
 * @property {number} winner  the most probable token in its place
 * @property {number} source  where the token is
 * @property {number} same  how many tokens the two occurrences have in common, counted back from the chosen one
 * @property {string} head  that attends most to it; "" where none is on
 * @property {number} weight  its attention
 * @property {number} added  what it adds to the logit of the token, above the mean
 * @property {number} lead  logit of the winner minus logit of the token
 * @property {Part[]} against  the parts of this lead, largest first
 */

/**
 * The token that a repeat asks for: behind the earlier occurrence that agrees furthest back, and of equals the latest one.
 * @param {number[]} ids @param {number} at
 */
export function repeated(ids, at) {
  let [source, same] = [-1, 0];
  for (let i = at - 1; i >= 0; i--) {
    let long = 0;
    while (long <= i && ids[i - long] === ids[at - long]) long++;
    if (long > same) [source, same] = [i + 1, long];
  }
  return { source, same };
}

/**
 * @param {Model} model @param {Run} run @param {number} at @param {Float32Array} logits  at this position
 * @returns {Failure | null} null where nothing repeats, or the repeat is continued
 */
export function failure(model, run, at, logits) {
  const { source, same } = repeated(run.ids, at);
  const token = run.ids[source];
  const [winner] = largest(logits, 1);
  if (source < 0 || token === winner) return null;
  const { n, layers } = run;
  let [head, weight] = ["", -1];
  layers.forEach(({ pattern }, layer) => {
    for (let i = 0; i < model.nHeads; i++) {
      const share = pattern[(i * n + at) * n + source];
      if (share > weight && !run.cuts.has(headName(layer, i))) [head, weight] = [headName(layer, i), share];
    }
  });
  const parts = new Map(logitParts(model, run, at, token).map(({ name, value }) => [name, value]));
  const against = logitParts(model, run, at, winner).map(({ name, value }) => ({ name, value: value - (parts.get(name) ?? 0) }));
  against.sort((a, b) => b.value - a.value);
  return { token, winner, source, same, head, weight, added: parts.get(head) ?? 0, lead: logits[winner] - logits[token], against };
}
