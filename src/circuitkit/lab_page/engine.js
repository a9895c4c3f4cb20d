/**
 * The forward pass, with heads switched off and wires cut; the output of every component is stored separately.
 *
 * How a wire is cut. The head that reads it gets its queries, keys or values from `norm(x - y + fill)`, where `x` is the stream, `y`
 * what the writing head has left in it and `fill` what takes its place. The divisor of the norm is computed again, and whatever else
 * reads the stream does not change. So does `run` of the library.
 */

import { parseCut } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./weights.js").Norm} Norm */
/** @typedef {Float32Array | Float64Array} Numbers  weights are in half precision; what is computed with them is in double */
/**
 * @typedef {object} Without  what is missing from a run
 * @property {string[]} cuts  heads "L0H1" and wires "L0H1->L1H3.K"
 * @property {Numbers[] | null} means  for each layer what its heads read out on average; null takes out by zero
 * @property {boolean} [wiresToo]  whether the means fill cut wires as well, as `fill="mean"` of the library does
 * @property {Run | null} [patch]  a run of equal length whose values take the place of what is missing
 */
/**
 * @typedef {object} LayerRun
 * @property {Float64Array} stream  before the layer, [n, dModel]
 * @property {Float64Array} x  what the heads read: the stream behind the norm
 * @property {Float64Array} q  [n, heads * dHead], and so are k, v and z
 * @property {Float64Array} k
 * @property {Float64Array} v
 * @property {Float32Array} pattern  [heads, n, n]
 * @property {Float64Array} read  z as the head made it, before it was taken out
 * @property {Float64Array} z  z as it was used
 * @property {Float64Array[]} wrote  for each head what it added to the stream, [n, dContent]
 * @property {Float64Array | null} mlp  what the MLP added, [n, dContent]
 */
/**
 * @typedef {object} Run
 * @property {number} n
 * @property {number[]} ids
 * @property {Float64Array} start  token and position, [n, dModel]
 * @property {LayerRun[]} layers
 * @property {Float64Array} stream  the content of the stream at the end, [n, dContent]
 * @property {Float64Array} final  the same behind the last norm: what the unembedding reads
 * @property {Set<string>} cuts
 * @property {Run | null} [patch]
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

/** What a norm divides a row by. @param {Norm} norm @param {Numbers} x @param {number} from @param {number} wide */
export function divisor({ centred, eps }, x, from, wide) {
  let [sum, squares] = [0, 0];
  for (let c = from; c < from + wide; c++) sum += x[c];
  const mean = centred ? sum / wide : 0;
  for (let c = from; c < from + wide; c++) squares += (x[c] - mean) ** 2;
  return Math.sqrt(squares / wide + eps);
}

/**
 * Rows behind a norm. @param {Norm | null | undefined} norm @param {Float64Array} x @param {number} wide
 * @returns {Float64Array}
 */
function normed(norm, x, wide) {
  if (!norm) return x;
  const out = new Float64Array(x.length);
  for (let from = 0; from < x.length; from += wide) {
    const by = divisor(norm, x, from, wide);
    let mean = 0;
    if (norm.centred) for (let c = 0; c < wide; c++) mean += x[from + c] / wide;
    for (let c = 0; c < wide; c++) out[from + c] = ((x[from + c] - mean) / by) * (norm.gain?.[c] ?? 1) + (norm.bias?.[c] ?? 0);
  }
  return out;
}

/**
 * Turn rows [n, wide] of one head to their positions.
 * @param {Model} model @param {Float64Array} rows @param {number} wide @param {number} from @param {number} first @param {number} n  positions
 */
export function turn({ rotary }, rows, wide, from, first, n) {
  if (!rotary) return;
  const { planes, cos, sin } = rotary;
  for (let i = first; i < first + n; i++)
    planes.forEach(([a, b], p) => {
      const at = i * planes.length + p;
      const row = (i - first) * wide + from;
      const [x, y] = [rows[row + a], rows[row + b]];
      rows[row + a] = x * cos[at] - y * sin[at];
      rows[row + b] = y * cos[at] + x * sin[at];
    });
}

/** 1e-7 of the error function (Abramowitz and Stegun 7.1.26). @param {number} x */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const rest = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * Math.exp(-x * x);
  return x < 0 ? rest - 1 : 1 - rest;
}

/** @type {Record<string, (x: number) => number>} */
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  silu: (x) => x / (1 + Math.exp(-x)),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_new: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

/**
 * What the MLP of a layer adds, [n, dContent].
 * @param {Model} model @param {number} layer @param {Float64Array} stream  [n, dContent] @param {number} n
 */
function mlpOf(model, layer, stream, n) {
  const { mlp, ln2 } = model.layers[layer];
  if (!mlp) return null;
  const { dContent } = model;
  const { size } = mlp;
  const x = normed(ln2, stream, dContent);
  const through = (/** @type {Numbers} */ a, /** @type {number} */ k, /** @type {Numbers} */ W, /** @type {Numbers | undefined} */ b, /** @type {number} */ m) => {
    const out = new Float64Array(n * m);
    if (b) for (let i = 0; i < n; i++) out.set(b, i * m);
    addProduct(a, k, 0, W, m, 0, out, m, 0, n, k, m);
    return out;
  };
  const act = ACTIVATIONS[model.act ?? "gelu"];
  const post = through(x, dContent, mlp.W_in, mlp.b_in, size);
  const gate = mlp.W_gate && through(x, dContent, mlp.W_gate, mlp.b_gate, size);
  for (let i = 0; i < post.length; i++) post[i] = gate ? act(gate[i]) * post[i] : act(post[i]);
  return through(post, size, mlp.W_out, mlp.b_out, dContent);
}

/**
 * @typedef {object} Plan  what is missing, by place
 * @property {Set<string>} heads
 * @property {Map<string, {layer: number, head: number}[]>} wires  by the input that they enter, "L1H3.K"
 * @property {Numbers[] | null} means
 * @property {boolean} wiresToo
 * @property {Run | null} patch
 */

/** @param {Without} without @returns {Plan} */
export function planOf({ cuts, means, wiresToo = false, patch = null }) {
  /** @type {Plan} */
  const plan = { heads: new Set(), wires: new Map(), means, wiresToo, patch };
  for (const name of cuts) {
    const cut = parseCut(name);
    if (cut && !cut.to) plan.heads.add(name);
    const reader = name.split("->")[1];
    if (cut?.to) plan.wires.set(reader, [...(plan.wires.get(reader) ?? []), cut]);
  }
  return plan;
}

/**
 * What an input of a head misses, [n, dContent]; null if nothing.
 * @param {Model} model @param {LayerRun[]} layers @param {Plan} plan @param {string} reader  "L1H3.K" @param {number} n
 */
function missing(model, layers, plan, reader, n) {
  const writers = plan.wires.get(reader);
  if (!writers) return null;
  const { dContent, dHead } = model;
  const lost = new Float64Array(n * dContent);
  for (const { layer, head } of writers) {
    const wrote = layers[layer].wrote[head];
    const instead = plan.patch?.layers[layer].wrote[head];
    for (let i = 0; i < lost.length; i++) lost[i] += wrote[i] - (instead ? instead[i] : 0);
    if (instead || !plan.means || !plan.wiresToo) continue;
    const fill = new Float64Array(dContent);
    addProduct(plan.means[layer], 0, head * dHead, model.layers[layer].W_O, dContent, head * dHead * dContent, fill, dContent, 0, 1, dHead, dContent);
    for (let i = 0; i < lost.length; i++) lost[i] -= fill[i % dContent];
  }
  return lost;
}

/**
 * Queries, keys or values of one head, from row `since` on, into a block of columns of `whole`.
 * @param {Model} model @param {LayerRun[]} layers  those before @param {number} layer @param {number} head @param {string} input
 * @param {Float64Array} stream @param {Float64Array} x @param {Plan} plan @param {Float64Array} whole @param {number} since @param {number} n
 */
function project(model, layers, layer, head, input, stream, x, plan, whole, since, n) {
  const { dModel, dContent, dHead, nHeads } = model;
  const weights = model.layers[layer];
  const [wide, from] = [nHeads * dHead, head * dHead];
  const lost = missing(model, layers, plan, `L${layer}H${head}.${input}`, n);
  // Behind a norm, what is missing changes the divisor; without one, it is only subtracted.
  const changed = lost && weights.ln1 ? normed(weights.ln1, stream.map((value, i) => value - lost[i]), dContent) : x;
  const W = weights[/** @type {"W_Q"} */ (`W_${input}`)];
  for (let i = since; i < n; i++) whole.fill(0, i * wide + from, i * wide + from + dHead);
  addProduct(changed, dModel, since * dModel, W, wide, from, whole, wide, since * wide + from, n - since, input === "V" ? dContent : dModel, dHead);
  const bias = weights[/** @type {"b_Q"} */ (`b_${input}`)];
  if (bias) for (let i = since; i < n; i++) for (let c = from; c < from + dHead; c++) whole[i * wide + c] += bias[c];
  if (lost && !weights.ln1) {
    const less = given(model, lost, n, layer, head, input);
    for (let i = since; i < n; i++) for (let c = 0; c < dHead; c++) whole[i * wide + from + c] -= less[i * dHead + c];
  }
  if (input !== "V") turn(model, whole.subarray(since * wide), wide, from, since, n - since);
}

/**
 * One layer: what its heads and its MLP do, and the stream behind it.
 * @param {Model} model @param {LayerRun[]} layers  those before @param {Float64Array} stream  [n, dModel] @param {number} n @param {Plan} plan
 * @param {{since?: number, old?: LayerRun, changed?: {head: number, input?: string}}} [some]  the first row that is needed behind the
 *   layer; a run of the layer, from which everything is taken except one head that is switched or reads something else in one input
 * @returns {{done: LayerRun, stream: Float64Array}}
 */
export function pass(model, layers, stream, n, plan, { since = 0, old, changed } = {}) {
  const { dModel, dContent, dHead, nHeads } = model;
  const layer = layers.length;
  const { ln1, W_O, b_O, alone } = model.layers[layer];
  const heads = Array.from({ length: nHeads }, (_, head) => head);
  const wide = nHeads * dHead;
  const x = old ? old.x.subarray(0, n * dModel) : normed(ln1, stream, dModel);
  const side = (/** @type {string} */ input, /** @type {Float64Array | undefined} */ as) => {
    if (as && changed?.input !== input) return as;
    const whole = as ? as.slice(0, n * wide) : new Float64Array(n * wide);
    for (const head of changed ? [changed.head] : heads) project(model, layers, layer, head, input, stream, x, plan, whole, input === "Q" ? since : 0, n);
    return whole;
  };
  const [q, k, v] = [side("Q", old?.q), side("K", old?.k), side("V", old?.v)];
  const read = old && !changed?.input ? old.read : new Float64Array(n * wide);
  const pattern = new Float32Array(old ? 0 : nHeads * n * n);
  const z = new Float64Array(n * wide);
  const after = stream.slice();
  const wrote = heads.map((head) => {
    let out = old?.wrote[head];
    if (!out || head === changed?.head) {
      if (read !== old?.read) attend(model, q, k, v, head, n, since, pattern, read, alone);
      const gone = plan.heads.has(`L${layer}H${head}`);
      for (let i = since; i < n; i++)
        for (let c = head * dHead; c < (head + 1) * dHead; c++) z[i * wide + c] = gone ? (plan.patch?.layers[layer].read[i * wide + c] ?? plan.means?.[layer][c] ?? 0) : read[i * wide + c];
      out = new Float64Array(n * dContent);
      addProduct(z, wide, since * wide + head * dHead, W_O, dContent, head * dHead * dContent, out, dContent, since * dContent, n - since, dHead, dContent);
    }
    for (let i = since; i < n; i++) for (let c = 0; c < dContent; c++) after[i * dModel + c] += out[i * dContent + c];
    return out;
  });
  if (b_O) for (let i = since; i < n; i++) for (let c = 0; c < dContent; c++) after[i * dModel + c] += b_O[c];
  const rows = (model.parallel ? stream : after).slice(since * dModel);
  const mlp = mlpOf(model, layer, rows, n - since);
  if (mlp) for (let i = 0; i < mlp.length; i++) after[since * dContent + i] += mlp[i];
  return { done: { stream, x, q, k, v, pattern, read, z, wrote, mlp }, stream: after };
}

/**
 * @param {Model} model
 * @param {number[]} ids
 * @param {Without} [without]
 * @returns {Run}
 */
export function forward(model, ids, without = { cuts: [], means: null }) {
  const { dModel, dContent, addsPositions, W_pos } = model;
  const n = ids.length;
  const start = new Float64Array(n * dModel);
  const dPosition = addsPositions ? dContent : dModel - dContent;
  for (let i = 0; i < n; i++) {
    start.set(model.W_E.subarray(ids[i] * dContent, (ids[i] + 1) * dContent), i * dModel);
    for (let c = 0; c < dPosition; c++) start[i * dModel + c + (addsPositions ? 0 : dContent)] += W_pos[i * dPosition + c];
  }
  const plan = planOf(without);
  /** @type {LayerRun[]} */
  const layers = [];
  /** @type {Float64Array} */
  let all = start;
  for (let layer = 0; layer < model.nLayers; layer++) {
    const { done, stream } = pass(model, layers, all, n, plan);
    layers.push(done);
    all = stream;
  }
  const stream = new Float64Array(n * dContent);
  for (let i = 0; i < n; i++) stream.set(all.subarray(i * dModel, i * dModel + dContent), i * dContent);
  return { n, ids, start, layers, stream, final: normed(model.lnFinal, stream, dContent), cuts: new Set(without.cuts), patch: without.patch };
}

/**
 * One head from position `since` on: where it looks and what it reads out there.
 * @param {Model} model @param {Float64Array} q @param {Float64Array} k @param {Float64Array} v @param {number} head @param {number} n
 * @param {number} since @param {Float32Array} pattern  [heads, n, n], or empty if it is not needed @param {Float64Array} read
 * @param {boolean} [alone]  whether each position attends to itself only
 */
function attend({ dHead, nHeads, scale = Math.sqrt(dHead) }, q, k, v, head, n, since, pattern, read, alone = false) {
  const wide = nHeads * dHead;
  const from = head * dHead;
  const scores = new Float64Array(n);
  for (let i = since; i < n; i++) {
    const first = alone ? i : 0;
    let most = -Infinity;
    for (let s = first; s <= i; s++) {
      let score = 0;
      for (let c = from; c < from + dHead; c++) score += q[i * wide + c] * k[s * wide + c];
      scores[s] = score / scale;
      if (scores[s] > most) most = scores[s];
    }
    let sum = 0;
    for (let s = first; s <= i; s++) sum += scores[s] = Math.exp(scores[s] - most);
    for (let s = first; s <= i; s++) {
      const share = scores[s] / sum;
      if (pattern.length) pattern[(head * n + i) * n + s] = share;
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
  if (model.b_U) for (let i = 0; i < to - from; i++) out.set(model.b_U, i * dVocab);
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
