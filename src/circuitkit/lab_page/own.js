/**
 * A file that `ck.lab` has written: what it says is compared with what it holds, and its logits with those of PyTorch.
 */
import { meansOf } from "./analysis.js";
import { forward, logits } from "./engine.js";
import { isIn } from "./names.js";
import { buildModel, damaged, fromJson, readHeader, readTensors, sizesOf } from "./weights.js";

/** @typedef {import("./weights.js").Card} Card */
/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./weights.js").Tensor} Tensor */
/** @typedef {{ids: number[], cuts: string[], fill: "zero" | "mean", every: number}} Check  the logits of every so-many-th token, at all positions */
/** @typedef {Card & {title: string, tokens: string[], rows: number[][], texts?: string[], checks: Check[], rounding: [number, number]}} FileCard */

/** How far a logit may be from PyTorch's, as a share of the largest. */
export const AGREES = 1e-4;

const MOST_ROWS = 64;

/** @param {unknown} value @param {number} [below] @returns {value is number[]} */
function areWhole(value, below = Infinity) {
  return Array.isArray(value) && value.length > 0 && value.every((one) => Number.isInteger(one) && one >= 0 && one < below);
}

/**
 * @param {Uint8Array} bytes
 * @returns {{card: FileCard, model: Model, tensors: Map<string, Tensor>}}
 */
export function readLab(bytes) {
  const { header } = readHeader(bytes);
  const said = header.__metadata__?.lab;
  if (typeof said !== "string") throw new Error("it was not written by ck.lab");
  /** @type {FileCard} */
  const card = fromJson(said);
  const tensors = readTensors(bytes);
  const model = buildModel(tensors, card);
  const { nCtx, dVocab } = model;
  const fits = (/** @type {unknown} */ ids) => areWhole(ids, dVocab) && ids.length <= nCtx;
  const strings = (/** @type {unknown} */ list, /** @type {number} */ length) => Array.isArray(list) && list.length === length && list.every((one) => typeof one === "string" && one.length < 1000);
  const known = (/** @type {unknown} */ name) => typeof name === "string" && isIn(name, sizesOf(model));
  const right = [
    [typeof card.title === "string", "title"],
    [strings(card.tokens, dVocab), "tokens"],
    [Array.isArray(card.rows) && card.rows.length > 0 && card.rows.length <= MOST_ROWS && card.rows.every(fits), "rows"],
    [!card.texts || strings(card.texts, card.rows.length), "texts"],
    [Array.isArray(card.rounding) && card.rounding.every(Number.isFinite), "rounding"],
    [Array.isArray(card.checks) && card.checks.length > 0 && card.checks.length <= 12, "checks"],
    [card.checks?.every?.(({ ids, cuts, every }) => fits(ids) && Array.isArray(cuts) && cuts.length < 100 && cuts.every(known) && areWhole([every]) && every > 0), "checks"],
  ];
  const wrong = right.find(([is]) => !is);
  if (wrong) throw damaged(`its ${wrong[1]} do not fit its model`);
  return { card, model, tensors };
}

/**
 * The largest difference from the logits of PyTorch in the file, the largest of these logits, and how many there are.
 * @param {Model} model @param {FileCard} card @param {Map<string, Tensor>} tensors
 */
export function compare(model, { checks, rows }, tensors) {
  let [difference, largest, count] = [0, 0, 0];
  const means = model.nLayers ? meansOf(rows.map((ids) => forward(model, ids))) : null;
  checks.forEach(({ ids, cuts, fill, every }, number) => {
    const run = forward(model, ids, { cuts, means: fill === "mean" ? means : null, wiresToo: true });
    const { values: theirs } = tensors.get(`check.${number}`) ?? { values: new Float32Array() };
    const columns = Math.ceil(model.dVocab / every);
    if (theirs.length !== ids.length * columns) throw damaged("its checks do not fit its model");
    const ours = logits(model, run);
    theirs.forEach((value, i) => {
      const away = Math.abs(value - ours[Math.floor(i / columns) * model.dVocab + (i % columns) * every]);
      difference = away <= difference ? difference : away; // a NaN counts
      largest = Math.max(largest, Math.abs(value));
    });
    count += theirs.length;
  });
  return { difference, largest, count };
}
