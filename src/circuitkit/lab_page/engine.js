/**
 * The forward pass, with heads switched off and wires cut; the output of every component is stored separately.
 */

import { parseCut } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {Float32Array | Float64Array} Numbers  weights are in half precision; what is computed with them is in double */
/**
 * @typedef {object} Without  what is missing from a run
 * @property {string[]} cuts  heads "L0H1" and wires "L0H1->L1H3.K"
 * @property {Numbers[] | null} means  for each layer what its heads read out on average; null takes out by zero
 */
/**
 * @typedef {object} LayerRun
 * @property {Float64Array} q  [n, heads * dHead], and so are k, v and z
 * @property {Float64Array} k
 * @property {Float64Array} v
 * @property {Float32Array} pattern  [heads, n, n]
 * @property {Float64Array} read  z as the head made it, before it was taken out
 * @property {Float64Array} z  z as it was used
 * @property {Float64Array[]} wrote  for each head what it added to the stream, [n, dContent]
 */
/**
 * @typedef {object} Run
 * @property {number} n
 * @property {number[]} ids
 * @property {Float64Array} start  token and position, [n, dModel]
 * @property {LayerRun[]} layers
 * @property {Float64Array} final  the content of the stream at the end, [n, dContent]
 * @property {Set<string>} cuts
 */

/**
 * out += a @ b, where a is [n, k], b is [k, m] and each may be a block of columns or rows of something wider.
 * @param {Numbers} a @param {number} aWide @param {number} aFrom
 * @param {Numbers} b @param {number} bWide @param {number} bFrom
 * @param {Numbers} out @param {number} outWide @param {number} outFrom
 * @param {number} n @param {number} k @param {number} m
 */
export function addProduct(a, aWide, aFrom, b, bWide, bFrom, out, outWide, outFrom, n, k, m) {
  const rows = new Float64Array(n * k);
  for (let i = 0; i < n; i++) for (let j = 0; j < k; j++) rows[i * k + j] = a[aFrom + i * aWide + j];
  // Four columns of b side by side, times two rows of a at once: the eight sums stay in the processor.
  const four = new Float64Array(k * 4);
  for (let c = 0; c < m; c += 4) {
    const some = Math.min(4, m - c);
    for (let j = 0; j < k; j++) for (let t = 0; t < some; t++) four[j * 4 + t] = b[bFrom + j * bWide + c + t];
    for (let i = 0; i < n; i += 2) {
      let [s0, s1, s2, s3, t0, t1, t2, t3] = [0, 0, 0, 0, 0, 0, 0, 0];
      const second = i + 1 < n ? k : 0;
      for (let r = i * k, p = 0; p < k * 4; r++, p += 4) {
        const x = rows[r];
        const y = rows[r + second];
        const b0 = four[p];
        const b1 = four[p + 1];
        const b2 = four[p + 2];
        const b3 = four[p + 3];
        s0 += x * b0;
        s1 += x * b1;
        s2 += x * b2;
        s3 += x * b3;
        t0 += y * b0;
        t1 += y * b1;
        t2 += y * b2;
        t3 += y * b3;
      }
      const o = outFrom + i * outWide + c;
      out[o] += s0;
      if (some > 1) out[o + 1] += s1;
      if (some > 2) out[o + 2] += s2;
      if (some > 3) out[o + 3] += s3;
      if (!second) continue;
      const u = o + outWide;
      out[u] += t0;
      if (some > 1) out[u + 1] += t1;
      if (some > 2) out[u + 2] += t2;
      if (some > 3) out[u + 3] += t3;
    }
  }
}

/**
 * What something that was written gives to an input of one head: `wrote @ W`, [n, dHead].
 * @param {Model} model @param {Numbers} wrote  [n, dContent] @param {number} n
 * @param {number} layer @param {number} head @param {string} input
 */
export function given(model, wrote, n, layer, head, input) {
  const { dContent, dHead, nHeads } = model;
  const W = model.layers[layer][/** @type {"W_Q"} */ (`W_${input}`)];
  const out = new Float64Array(n * dHead);
  addProduct(wrote, dContent, 0, W, nHeads * dHead, head * dHead, out, dHead, 0, n, dContent, dHead);
  return out;
}

/**
 * @param {Model} model
 * @param {number[]} ids
 * @param {Without} [without]
 * @returns {Run}
 */
export function forward(model, ids, without = { cuts: [], means: null }) {
  const { dModel, dContent, dHead, nHeads } = model;
  const n = ids.length;
  const wide = nHeads * dHead;
  const start = new Float64Array(n * dModel);
  for (let i = 0; i < n; i++) {
    start.set(model.W_E.subarray(ids[i] * dContent, (ids[i] + 1) * dContent), i * dModel);
    start.set(model.W_pos.subarray(i * (dModel - dContent), (i + 1) * (dModel - dContent)), i * dModel + dContent);
  }
  const cuts = without.cuts.map(parseCut).filter((cut) => cut !== null);
  const stream = start.slice();
  /** @type {LayerRun[]} */
  const layers = [];
  model.layers.forEach(({ W_Q, W_K, W_V, W_O, alone }, layer) => {
    const q = new Float64Array(n * wide);
    const k = new Float64Array(n * wide);
    const v = new Float64Array(n * wide);
    addProduct(stream, dModel, 0, W_Q, wide, 0, q, wide, 0, n, dModel, wide);
    addProduct(stream, dModel, 0, W_K, wide, 0, k, wide, 0, n, dModel, wide);
    addProduct(stream, dModel, 0, W_V, wide, 0, v, wide, 0, n, dContent, wide);
    for (const cut of cuts) {
      if (cut.to?.layer !== layer) continue;
      const { head, input } = cut.to;
      const lost = given(model, layers[cut.layer].wrote[cut.head], n, layer, head, input);
      const whole = input === "Q" ? q : input === "K" ? k : v;
      for (let i = 0; i < n; i++)
        for (let c = 0; c < dHead; c++) whole[i * wide + head * dHead + c] -= lost[i * dHead + c];
    }
    const pattern = new Float32Array(nHeads * n * n);
    const read = new Float64Array(n * wide);
    for (let head = 0; head < nHeads; head++) attend(model, q, k, v, head, n, pattern, read, alone);
    const z = read.slice();
    for (const cut of cuts) {
      if (cut.to || cut.layer !== layer) continue;
      const from = cut.head * dHead;
      for (let i = 0; i < n; i++)
        for (let c = from; c < from + dHead; c++) z[i * wide + c] = without.means ? without.means[layer][c] : 0;
    }
    const wrote = [];
    for (let head = 0; head < nHeads; head++) {
      const out = new Float64Array(n * dContent);
      addProduct(z, wide, head * dHead, W_O, dContent, head * dHead * dContent, out, dContent, 0, n, dHead, dContent);
      wrote.push(out);
      for (let i = 0; i < n; i++) for (let c = 0; c < dContent; c++) stream[i * dModel + c] += out[i * dContent + c];
    }
    layers.push({ q, k, v, pattern, read, z, wrote });
  });
  const final = new Float64Array(n * dContent);
  for (let i = 0; i < n; i++) final.set(stream.subarray(i * dModel, i * dModel + dContent), i * dContent);
  return { n, ids, start, layers, final, cuts: new Set(without.cuts) };
}

/**
 * One head at every position: where it looks and what it reads out there.
 * @param {Model} model @param {Float64Array} q @param {Float64Array} k @param {Float64Array} v
 * @param {number} head @param {number} n @param {Float32Array} pattern @param {Float64Array} read
 * @param {boolean} [alone]  whether each position attends to itself only
 */
function attend({ dHead, nHeads }, q, k, v, head, n, pattern, read, alone = false) {
  const wide = nHeads * dHead;
  const from = head * dHead;
  const scores = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const first = alone ? i : 0;
    let most = -Infinity;
    for (let s = first; s <= i; s++) {
      let score = 0;
      for (let c = from; c < from + dHead; c++) score += q[i * wide + c] * k[s * wide + c];
      scores[s] = score / Math.sqrt(dHead);
      if (scores[s] > most) most = scores[s];
    }
    let sum = 0;
    for (let s = first; s <= i; s++) sum += scores[s] = Math.exp(scores[s] - most);
    for (let s = first; s <= i; s++) {
      const share = scores[s] / sum;
      pattern[(head * n + i) * n + s] = share;
      for (let c = from; c < from + dHead; c++) read[i * wide + c] += share * v[s * wide + c];
    }
  }
}

/**
 * The logits at some positions, one row for each.
 * @param {Model} model @param {Run} run @param {number} [from] @param {number} [to]
 */
export function logits(model, run, from = 0, to = run.n) {
  const { dContent, dVocab } = model;
  const out = new Float32Array((to - from) * dVocab);
  addProduct(run.final, dContent, from * dContent, model.W_U, dVocab, 0, out, dVocab, 0, to - from, dContent, dVocab);
  return out;
}

/**
 * @param {Float32Array} row
 * @returns {Float32Array}
 */
export function softmax(row) {
  let most = -Infinity;
  for (const value of row) if (value > most) most = value;
  const out = new Float32Array(row.length);
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += out[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) out[i] /= sum;
  return out;
}
