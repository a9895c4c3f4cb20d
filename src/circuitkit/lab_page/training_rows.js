/**
 * What a training run is made from: its settings, its random numbers and its rows.
 */

/**
 * @typedef {object} Recipe  what a reader sets before the training starts
 * @property {number} seed
 * @property {number} layers  1 or 2, with one head each
 * @property {number} share  of the training rows that repeat, 0 to 1
 * @property {boolean} blind  whether the head of layer 0 may attend to its own position only
 */
/** @typedef {{ids: number[], from: number, period: number}} Row  tokens and the one after them; the loss begins at `from`; a row without a repeat has period 0 */

export const SIZES = { dVocab: 64, dContent: 64, dPosition: 16, dHead: 32, nCtx: 32, batch: 16 };
export const STEPS = 240;
export const EVERY = 4; // steps between two saved ones

/**
 * Random numbers from 0 to 1, the same for everybody (mulberry32).
 * @param {number} seed
 */
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * A row behind its start token: distinct random tokens, of which a quarter to a half of the row come again and again, or none
 * does. The loss counts the tokens that the repetition predicts, and as many in a row without a repeat.
 * @param {() => number} random @param {boolean} repeats @param {{dVocab: number, nCtx: number}} [sizes]
 * @returns {Row}
 */
export function newRow(random, repeats, { dVocab, nCtx } = SIZES) {
  const tokens = Array.from({ length: dVocab - 1 }, (_, i) => i + 1);
  for (let i = tokens.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [tokens[i], tokens[j]] = [tokens[j], tokens[i]];
  }
  const period = nCtx / 4 + Math.floor(random() * (nCtx / 4 + 1));
  const ids = [0, ...Array.from({ length: nCtx }, (_, i) => tokens[repeats ? i % period : i])];
  return { ids, from: period + 1, period: repeats ? period : 0 };
}
