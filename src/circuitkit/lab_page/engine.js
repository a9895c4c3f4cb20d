/**
 * The forward pass, with heads switched off and wires cut; the output of every component is stored separately.
 *
 * How a wire is cut. The head that reads it gets its queries, keys or values from `norm(x - y + fill)`, where `x` is the stream, `y`
 * what the writing head has left in it and `fill` what takes its place. The divisor of the norm is computed again, and whatever else
 * reads the stream does not change. So does `run` of the library.
 */

import { parseGate, parseName } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./weights.js").Mlp} Mlp */
/** @typedef {import("./weights.js").Norm} Norm */
/** @typedef {Float32Array | Float64Array} Numbers  weights are in half precision; what is computed with them is in double */
/** @typedef {{z: Numbers, post: Numbers | null}[]} Means  for each layer what its heads and its neurons read out on average */
/**
 * @typedef {object} Without  what is missing from a run
 * @property {string[]} cuts  heads "L0H1", neurons "L0N5", "L0 MLP", wires "L0H1->L1H3.K", and gates "L0H6 open"
 * @property {Means | null} means  what takes the place of what is taken out; null takes out by zero
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
 * @property {Float64Array | null} fired  what each neuron gathered, before it was taken out, [n, neurons]
 * @property {Float64Array | null} post  the same as it was used
 * @property {Float32Array | null} gates  by which the patterns were multiplied, [heads, n, n]
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

/** @param {number} x */
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** @type {Record<string, (x: number) => number>} */
const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  silu: (x) => x * sigmoid(x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_new: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

/**
 * @param {Numbers} a  [n, k] @param {number} k @param {Numbers} W  [k, m] @param {Numbers | undefined} b @param {number} m
 * @param {number} n @param {number} since  the first row that is needed
 */
function through(a, k, W, b, m, n, since) {
  const out = new Float64Array(n * m);
  if (b) for (let i = since; i < n; i++) out.set(b, i * m);
  addProduct(a, k, since * k, W, m, 0, out, m, since * m, n - since, k, m);
  return out;
}

/**
 * The heads of a neuron that was rewritten as heads: how strongly each attends to its own token (the rest goes to the bias token), and
 * the value that it finds there.
 * @param {number[][]} terms  [b, c, a, d] of each head @param {number} query  what queries read @param {number} value  what values read
 */
export function neuronHeads(terms, query, value) {
  return terms.map(([b, c, a, d]) => ({ weight: sigmoid(b * query + c), value: a * value + d }));
}

/** What a neuron gathers. @param {Model} model @param {Mlp} mlp @param {number} gate @param {number} value */
function gathered({ act = "gelu" }, { terms, W_gate }, gate, value) {
  if (terms) return neuronHeads(terms, gate, value).reduce((sum, { weight, value: found }) => sum + weight * found, 0);
  return W_gate ? ACTIVATIONS[act](gate) * value : ACTIVATIONS[act](value);
}

/**
 * What queries and values of one neuron read in rows of the stream: the gate and the value, or twice the same.
 * @param {Model} model @param {number} layer @param {number} neuron @param {Float64Array} rows @param {number} n @param {number} since
 */
export function neuronReads(model, layer, neuron, rows, n, since) {
  const { mlp, ln2 } = model.layers[layer];
  if (!mlp) throw new Error(`layer ${layer} has no neurons`);
  const { dContent } = model;
  const x = normed(ln2, rows, dContent);
  const read = (/** @type {Numbers} */ W, /** @type {Numbers | undefined} */ b) => {
    const out = new Float64Array(n).fill(b ? b[neuron] : 0);
    addProduct(x, dContent, since * dContent, W, mlp.size, neuron, out, 1, since, n - since, dContent, 1);
    return out;
  };
  const value = read(mlp.W_in, mlp.b_in);
  return { value, gate: mlp.W_gate ? read(mlp.W_gate, mlp.b_gate) : value };
}

/**
 * What each neuron of a layer gathers, [n, size], where wires into it may be cut.
 * @param {Model} model @param {LayerRun[]} layers  up to this one @param {Float64Array} rows  [n, dContent] @param {number} n @param {number} since @param {Plan} plan
 * @param {{old?: LayerRun, changed?: Changed}} some  everything is as in the old run, except one neuron
 */
function firedIn(model, layers, rows, n, since, plan, { old, changed }) {
  const layer = layers.length - 1;
  const { mlp, ln2 } = model.layers[layer];
  if (!mlp) return null;
  const { size, W_in, b_in, W_gate, b_gate } = mlp;
  const fired = old?.fired ? old.fired.slice(0, n * size) : new Float64Array(n * size);
  if (!old) {
    const x = normed(ln2, rows, model.dContent);
    const value = through(x, model.dContent, W_in, b_in, size, n, since);
    const gate = W_gate ? through(x, model.dContent, W_gate, b_gate, size, n, since) : value;
    for (let i = since * size; i < fired.length; i++) fired[i] = gathered(model, mlp, gate[i], value[i]);
  }
  const start = `L${layer}N`;
  const readers = [...plan.wires.keys()].filter((reader) => reader.startsWith(start)).map((reader) => Number(reader.slice(start.length).split(".")[0]));
  for (const neuron of new Set(changed?.neuron === undefined ? readers : [changed.neuron])) {
    const reads = (/** @type {string} */ input) => {
      const lost = missing(model, layers, plan, [`${start}${neuron}`, `${start}${neuron}.${input}`], n);
      return neuronReads(model, layer, neuron, lost ? rows.map((value, i) => value - lost[i]) : rows, n, since);
    };
    const [q, v] = [reads("Q"), reads("V")];
    for (let i = since; i < n; i++) fired[i * size + neuron] = gathered(model, mlp, q.gate[i], v.value[i]);
  }
  return fired;
}

/**
 * What the neurons of a layer are used with, and what its MLP adds, [n, dContent].
 * @param {Model} model @param {LayerRun[]} layers  up to this one @param {Float64Array} rows @param {number} n @param {number} since @param {Plan} plan
 * @param {{old?: LayerRun, changed?: Changed}} some
 */
function mlpOf(model, layers, rows, n, since, plan, some) {
  const layer = layers.length - 1;
  const { mlp } = model.layers[layer];
  const fired = firedIn(model, layers, rows, n, since, plan, some);
  if (!mlp || !fired) return { fired: null, post: null, mlp: null };
  const { size, W_out, b_out } = mlp;
  const { dContent } = model;
  const [theirs, mean] = [plan.patch?.layers[layer], plan.means?.[layer].post];
  const start = `L${layer}N`;
  const out = [...plan.out].filter((name) => name.startsWith(start)).map((name) => Number(name.slice(start.length)));
  const post = out.length ? fired.slice() : fired;
  for (const i of out) for (let row = since; row < n; row++) post[row * size + i] = theirs?.fired ? theirs.fired[row * size + i] : (mean?.[i] ?? 0);
  if (plan.out.has(`L${layer} MLP`)) {
    if (theirs?.mlp) return { fired, post, mlp: theirs.mlp.slice(0, n * dContent) };
    if (!mean) return { fired, post, mlp: new Float64Array(n * dContent) };
    const same = through(mean, size, W_out, b_out, dContent, 1, 0);
    return { fired, post, mlp: Float64Array.from({ length: n * dContent }, (_, i) => same[i % dContent]) };
  }
  const { old, changed } = some;
  const neuron = changed?.neuron;
  if (!old?.mlp || !old.post || neuron === undefined) return { fired, post, mlp: through(post, size, W_out, b_out, dContent, n, since) };
  const added = old.mlp.slice(0, n * dContent);
  for (let row = since; row < n; row++) {
    const more = post[row * size + neuron] - old.post[row * size + neuron];
    for (let c = 0; c < dContent; c++) added[row * dContent + c] += more * W_out[neuron * dContent + c];
  }
  return { fired, post, mlp: added };
}

/**
 * @typedef {object} Plan  what is missing, by place
 * @property {Set<string>} out  heads, neurons and MLPs
 * @property {Map<string, string[]>} wires  the writers, by the input that they enter, "L1H3.K"
 * @property {Map<string, boolean>} gates  whether the gate of a head is forced open or shut
 * @property {Means | null} means
 * @property {boolean} wiresToo
 * @property {Run | null} patch
 */
/** @typedef {{head?: number, neuron?: number, mlp?: boolean, input?: string}} Changed  what alone is different from an old run of a layer */

/** @param {Without} without @returns {Plan} */
export function planOf({ cuts, means, wiresToo = false, patch = null }) {
  /** @type {Plan} */
  const plan = { out: new Set(), wires: new Map(), gates: new Map(), means, wiresToo, patch };
  for (const name of cuts) {
    const [named, gate] = [parseName(name), parseGate(name)];
    if (gate) plan.gates.set(gate.head, gate.open);
    else if (named?.to) plan.wires.set(named.reader, [...(plan.wires.get(named.reader) ?? []), name.split("->")[0]]);
    else if (named) plan.out.add(name);
  }
  return plan;
}

/**
 * What a head, a neuron or an MLP has written, [n, dContent].
 * @param {Model} model @param {LayerRun[]} layers @param {string} writer @param {number} n
 */
export function writtenBy(model, layers, writer, n) {
  const named = parseName(writer);
  if (!named) throw new Error(`there is no ${writer}`);
  const { layer, kind, number } = named.from;
  if (kind === "H") return layers[layer].wrote[number];
  const { mlp } = model.layers[layer];
  const { post, mlp: whole } = layers[layer];
  if (!mlp || !post || !whole) throw new Error(`there is no ${writer}`);
  return kind === "MLP" ? whole : outer(post, mlp.size, number, mlp.W_out, model.dContent, n);
}

/**
 * A column of one matrix times a row of another: what one neuron writes.
 * @param {Numbers} post @param {number} size @param {number} neuron @param {Numbers} W_out @param {number} dContent @param {number} n
 */
function outer(post, size, neuron, W_out, dContent, n) {
  return Float64Array.from({ length: n * dContent }, (_, i) => post[Math.floor(i / dContent) * size + neuron] * W_out[neuron * dContent + (i % dContent)]);
}

/**
 * What a writer writes on average, [dContent].
 * @param {Model} model @param {Means} means @param {string} writer
 */
function averageOf(model, means, writer) {
  const { layer, kind, number } = /** @type {import("./names.js").Named} */ (parseName(writer)).from;
  const { dContent, dHead } = model;
  const { z, post } = means[layer];
  const { W_O, mlp } = model.layers[layer];
  const out = new Float64Array(dContent);
  if (kind === "H") addProduct(z, 0, number * dHead, W_O, dContent, number * dHead * dContent, out, dContent, 0, 1, dHead, dContent);
  else if (mlp && post) return kind === "N" ? outer(post, mlp.size, number, mlp.W_out, dContent, 1) : through(post, mlp.size, mlp.W_out, mlp.b_out, dContent, 1, 0);
  return out;
}

/**
 * What an input misses, [n, dContent]; null if nothing.
 * @param {Model} model @param {LayerRun[]} layers @param {Plan} plan @param {string[]} readers  names of the input, "L1H3.K" @param {number} n
 */
function missing(model, layers, plan, readers, n) {
  const writers = new Set(readers.flatMap((reader) => plan.wires.get(reader) ?? []));
  if (!writers.size) return null;
  const { dContent } = model;
  const lost = new Float64Array(n * dContent);
  for (const writer of writers) {
    const wrote = writtenBy(model, layers, writer, n);
    const instead = plan.patch && writtenBy(model, plan.patch.layers, writer, n);
    for (let i = 0; i < lost.length; i++) lost[i] += wrote[i] - (instead ? instead[i] : 0);
    if (instead || !plan.means || !plan.wiresToo) continue;
    const fill = averageOf(model, plan.means, writer);
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
  const lost = missing(model, layers, plan, [`L${layer}H${head}.${input}`], n);
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
 * @param {{since?: number, old?: LayerRun, changed?: Changed}} [some]  the first row that is needed behind the layer; a run of the layer,
 *   from which everything is taken except one head or neuron that is switched or reads something else in one input
 * @returns {{done: LayerRun, stream: Float64Array}}
 */
export function pass(model, layers, stream, n, plan, { since = 0, old, changed } = {}) {
  const { dModel, dContent, dHead, nHeads } = model;
  const layer = layers.length;
  const { ln1, W_O, b_O, alone } = model.layers[layer];
  const again = changed?.head === undefined ? "" : changed.input; // "gate", or the input of a head that reads something else
  const heads = Array.from({ length: nHeads }, (_, head) => head);
  const wide = nHeads * dHead;
  const x = old ? old.x.subarray(0, n * dModel) : normed(ln1, stream, dModel);
  const side = (/** @type {string} */ input, /** @type {Float64Array | undefined} */ as) => {
    if (as && again !== input) return as;
    const whole = as ? as.slice(0, n * wide) : new Float64Array(n * wide);
    for (const head of changed?.head === undefined ? heads : [changed.head]) project(model, layers, layer, head, input, stream, x, plan, whole, input === "Q" ? since : 0, n);
    return whole;
  };
  const [q, k, v] = [side("Q", old?.q), side("K", old?.k), side("V", old?.v)];
  const read = old && !again ? old.read : new Float64Array(n * wide);
  const gates = gatesOf(model, layer, x, n);
  const pattern = new Float32Array(old ? 0 : nHeads * n * n);
  const z = new Float64Array(n * wide);
  const after = stream.slice();
  const wrote = heads.map((head) => {
    let out = old?.wrote[head];
    if (!out || head === changed?.head) {
      const forced = plan.gates.get(`L${layer}H${head}`);
      const used = forced === undefined ? gates : forced ? null : new Float32Array(nHeads * n * n);
      if (read !== old?.read) attend(model, q, k, v, head, n, since, pattern, read, { alone, gates: used });
      const gone = plan.out.has(`L${layer}H${head}`);
      for (let i = since; i < n; i++)
        for (let c = head * dHead; c < (head + 1) * dHead; c++) z[i * wide + c] = gone ? (plan.patch?.layers[layer].read[i * wide + c] ?? plan.means?.[layer].z[c] ?? 0) : read[i * wide + c];
      out = new Float64Array(n * dContent);
      addProduct(z, wide, since * wide + head * dHead, W_O, dContent, head * dHead * dContent, out, dContent, since * dContent, n - since, dHead, dContent);
    }
    for (let i = since; i < n; i++) for (let c = 0; c < dContent; c++) after[i * dModel + c] += out[i * dContent + c];
    return out;
  });
  if (b_O) for (let i = since; i < n; i++) for (let c = 0; c < dContent; c++) after[i * dModel + c] += b_O[c];
  /** @type {LayerRun} */
  const done = { stream, x, q, k, v, pattern, read, z, wrote, gates, fired: null, post: null, mlp: null };
  if (!model.layers[layer].mlp) return { done, stream: after };
  const rows = (model.parallel ? stream : after).slice(0, n * dModel);
  const same = changed?.head === undefined ? { old, changed } : {}; // the MLP reads what a head writes
  Object.assign(done, mlpOf(model, [...layers, done], rows, n, since, plan, same));
  const added = /** @type {Float64Array} */ (done.mlp);
  for (let i = since * dContent; i < n * dContent; i++) after[i] += added[i];
  return { done, stream: after };
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
 * The gates of a layer, [heads, n, n]: a second score, cut off at 0 and 1. Null in a layer without gates.
 * @param {Model} model @param {number} layer @param {Float64Array} x  the whole stream, whatever is cut @param {number} n
 */
function gatesOf({ dModel, nHeads, layers }, layer, x, n) {
  const { gate } = layers[layer];
  if (!gate) return null;
  const { W_Q, W_K, b_Q, b_K, wide } = gate;
  const [q, k] = [through(x, dModel, W_Q, b_Q, nHeads * wide, n, 0), through(x, dModel, W_K, b_K, nHeads * wide, n, 0)];
  const out = new Float32Array(nHeads * n * n);
  for (let head = 0; head < nHeads; head++)
    for (let i = 0; i < n; i++)
      for (let s = 0; s <= i; s++) {
        let score = 0;
        for (let c = head * wide; c < (head + 1) * wide; c++) score += q[i * nHeads * wide + c] * k[s * nHeads * wide + c];
        out[(head * n + i) * n + s] = Math.max(0, Math.min(1, score));
      }
  return out;
}

/**
 * One head from position `since` on: where it looks and what it reads out there.
 * @param {Model} model @param {Float64Array} q @param {Float64Array} k @param {Float64Array} v @param {number} head @param {number} n
 * @param {number} since @param {Float32Array} pattern  [heads, n, n], or empty if it is not needed @param {Float64Array} read
 * @param {{alone?: boolean, gates?: Float32Array | null}} how  whether each position attends to itself only; what multiplies the pattern
 */
export function attend({ dHead, nHeads, scale = Math.sqrt(dHead) }, q, k, v, head, n, since, pattern, read, { alone = false, gates = null }) {
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
      const share = (scores[s] / sum) * (gates ? gates[(head * n + i) * n + s] : 1);
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
