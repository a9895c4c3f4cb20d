/**
 * What a run is made of: the logit in parts, the attention score in parts, the effect of each head and wire, words.
 */
import { addProduct, given } from "./engine.js";
import { headName, INPUTS } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./engine.js").Numbers} Numbers */
/** @typedef {{name: string, value: number}} Part */

/**
 * The direction that the logit of a token is read along, against the mean over the vocabulary.
 * @param {Model} model @param {number} token
 */
function direction({ W_U, meanU, dContent, dVocab }, token) {
  const out = new Float64Array(dContent);
  for (let i = 0; i < dContent; i++) out[i] = W_U[i * dVocab + token] - meanU[i];
  return out;
}

/** @param {Numbers} a @param {number} from @param {Numbers} b */
function dot(a, from, b) {
  let sum = 0;
  for (let i = 0; i < b.length; i++) sum += a[from + i] * b[i];
  return sum;
}

/**
 * The logit of a token above the mean logit at one position, as a sum over the parts of the stream.
 * @param {Model} model @param {Run} run @param {number} at @param {number} token
 * @returns {Part[]}
 */
export function logitParts(model, run, at, token) {
  const along = direction(model, token);
  const parts = [{ name: "embed", value: dot(run.start, at * model.dModel, along) }];
  run.layers.forEach(({ wrote }, layer) =>
    wrote.forEach((out, head) => parts.push({ name: headName(layer, head), value: dot(out, at * model.dContent, along) })),
  );
  return parts;
}

/**
 * The score of one head at (at, source), by what each part gives to the query and to the key: [query, key].
 * @param {Model} model @param {Run} run @param {number} layer @param {number} head @param {number} at @param {number} source
 */
export function scoreParts(model, run, layer, head, at, source) {
  const { dModel, dContent, dHead, nHeads } = model;
  const names = ["embed", "pos"];
  for (let l = 0; l < layer; l++) for (let h = 0; h < nHeads; h++) names.push(headName(l, h));
  const side = (/** @type {string} */ input, /** @type {number} */ position) => {
    const W = model.layers[layer][/** @type {"W_Q"} */ (`W_${input}`)];
    return names.map((name, i) => {
      const out = new Float64Array(dHead);
      if (run.cuts.has(`${name}->${headName(layer, head)}.${input}`)) return out;
      const wide = nHeads * dHead;
      const of = head * dHead;
      if (i === 0) addProduct(run.start, dModel, position * dModel, W, wide, of, out, dHead, 0, 1, dContent, dHead);
      else if (i === 1)
        addProduct(run.start, dModel, position * dModel + dContent, W, wide, of + dContent * wide, out, dHead, 0, 1, dModel - dContent, dHead);
      else {
        const wrote = run.layers[Math.floor((i - 2) / nHeads)].wrote[(i - 2) % nHeads];
        addProduct(wrote, dContent, position * dContent, W, wide, of, out, dHead, 0, 1, dContent, dHead);
      }
      return out;
    });
  };
  const keys = side("K", source);
  const table = side("Q", at).map((q) => keys.map((k) => dot(q, 0, k) / Math.sqrt(dHead)));
  return { names, table };
}

/**
 * The effect of every head and wire on a logit (above the mean) at one position: the logit with it minus the logit
 * without it, everything else as in this run. One that is off is switched on for this.
 * @param {Model} model @param {Run} run @param {number} at @param {number} token @param {Numbers[] | null} means
 * @returns {Record<string, number>}
 */
export function effects(model, run, at, token, means) {
  const { dContent, dHead, nHeads, nLayers } = model;
  const along = direction(model, token);
  const n = at + 1; // a position does not see what comes after it
  /** @type {Record<string, number>} */
  const found = {};
  const last = nLayers - 1;
  if (last < 0) return found;
  const readers = Array.from({ length: nHeads }, (_, head) => reader(model, run, last, head, at, along));
  for (let head = 0; head < nHeads; head++) {
    const { read, z } = run.layers[last];
    const from = (at * nHeads + head) * dHead;
    const put = readers[head].toLogit;
    const out = run.cuts.has(headName(last, head));
    const absent = out ? z.subarray(from, from + dHead) : (means?.[last].subarray(head * dHead, (head + 1) * dHead) ?? new Float64Array(dHead));
    found[headName(last, head)] = put(read.subarray(from, from + dHead)) - put(absent);
  }
  for (let head = 0; last === 1 && head < nHeads; head++) {
    const { read, z, wrote } = run.layers[0];
    const name = headName(0, head);
    const out = run.cuts.has(name);
    // What the head writes when it is on, minus what replaces it when it is off.
    const change = new Float64Array(n * dHead);
    for (let i = 0; i < n; i++)
      for (let c = 0; c < dHead; c++) {
        const here = (i * nHeads + head) * dHead + c;
        change[i * dHead + c] = read[here] - (out ? z[here] : (means?.[0][head * dHead + c] ?? 0));
      }
    const written = new Float64Array(n * dContent);
    addProduct(change, dHead, 0, model.layers[0].W_O, dContent, head * dHead * dContent, written, dContent, 0, n, dHead, dContent);
    let whole = dot(written, at * dContent, along);
    for (let to = 0; to < nHeads; to++) {
      /** @type {Record<string, Numbers>} */
      const all = {};
      const sign = out ? 1 : -1;
      for (const input of INPUTS) {
        const wire = `${name}->${headName(1, to)}.${input}`;
        const cut = run.cuts.has(wire);
        const carried = given(model, wrote[head], n, 1, to, input);
        found[wire] = readers[to].change({ [input]: carried }, cut ? 1 : -1) * (cut ? 1 : -1);
        if (!cut) all[input] = means || out ? given(model, written, n, 1, to, input) : carried;
      }
      whole += readers[to].change(all, sign) * sign;
    }
    found[name] = whole;
  }
  return found;
}

/**
 * One head of the last layer at one position, ready to be asked what a change of its inputs does to a logit.
 * @param {Model} model @param {Run} run @param {number} layer @param {number} head @param {number} at @param {Numbers} along
 */
function reader(model, run, layer, head, at, along) {
  const { dContent, dHead, nHeads } = model;
  const { q, k, v, z, read } = run.layers[layer];
  const wide = nHeads * dHead;
  const from = head * dHead;
  const writes = new Float64Array(dHead);
  for (let c = 0; c < dHead; c++) writes[c] = dot(model.layers[layer].W_O, (from + c) * dContent, along);
  const toLogit = (/** @type {Numbers} */ values) => dot(values, 0, writes);
  const taken = run.cuts.has(headName(layer, head));
  const now = toLogit((taken ? z : read).subarray(at * wide + from, at * wide + from + dHead));
  const scores = new Float64Array(at + 1);
  /** How the logit moves when `sign` times these are added to the inputs. @param {Record<string, Numbers>} inputs @param {number} sign */
  const change = (inputs, sign) => {
    if (taken) return 0; // what it reads does not matter
    const { Q, K, V } = inputs;
    let most = -Infinity;
    for (let s = 0; s <= at; s++) {
      let score = 0;
      for (let c = 0; c < dHead; c++) {
        const query = q[at * wide + from + c] + (Q ? sign * Q[at * dHead + c] : 0);
        score += query * (k[s * wide + from + c] + (K ? sign * K[s * dHead + c] : 0));
      }
      scores[s] = score / Math.sqrt(dHead);
      if (scores[s] > most) most = scores[s];
    }
    let sum = 0;
    for (let s = 0; s <= at; s++) sum += scores[s] = Math.exp(scores[s] - most);
    let total = 0;
    for (let s = 0; s <= at; s++)
      for (let c = 0; c < dHead; c++)
        total += (scores[s] / sum) * writes[c] * (v[s * wide + from + c] + (V ? sign * V[s * dHead + c] : 0));
    return total - now;
  };
  return { toLogit, change };
}

/**
 * The largest entries of a row. @param {Float32Array} row @param {number} count
 * @returns {number[]} their places
 */
export function largest(row, count) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < row.length; i++) {
    if (best.length === count && row[i] <= row[best[count - 1]]) continue;
    let place = best.length;
    while (place > 0 && row[best[place - 1]] < row[i]) place--;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * What looking at a token adds to every logit: its row of `W_E W_V W_O W_U`.
 * @param {Model} model @param {number} layer @param {number} head @param {number} token
 */
export function writtenFor(model, layer, head, token) {
  const { dContent, dVocab } = model;
  const out = new Float32Array(dVocab);
  const moved = throughHead(model, layer, head, model.W_E.subarray(token * dContent, (token + 1) * dContent), 1);
  addProduct(moved, dContent, 0, model.W_U, dVocab, 0, out, dVocab, 0, 1, dContent, dVocab);
  return out;
}

/**
 * What a head makes of streams that it attends to: `x @ W_V @ W_O`, [n, dContent].
 * @param {Model} model @param {number} layer @param {number} head @param {Numbers} x  [n, dContent] @param {number} n
 */
function throughHead(model, layer, head, x, n) {
  const { dContent, dHead } = model;
  const out = new Float64Array(n * dContent);
  addProduct(given(model, x, n, layer, head, "V"), dHead, 0, model.layers[layer].W_O, dContent, head * dHead * dContent, out, dContent, 0, n, dHead, dContent);
  return out;
}

/**
 * The score that a token as destination gives to every token as source, by their words alone: a row of
 * `W_E W_Q (W_E C W_K)^T / sqrt(dHead)`, where C is the identity or the OV matrix of an earlier head.
 * @param {Model} model @param {number} layer @param {number} head @param {number} token @param {number} [via]  a head of layer 0
 */
export function lookedFor(model, layer, head, token, via) {
  const { dContent, dHead, dVocab, W_E } = model;
  const query = given(model, W_E.subarray(token * dContent, (token + 1) * dContent), 1, layer, head, "Q");
  const keys = given(model, via === undefined ? W_E : throughHead(model, 0, via, W_E, dVocab), dVocab, layer, head, "K");
  return Float32Array.from({ length: dVocab }, (_, i) => dot(keys, i * dHead, query) / Math.sqrt(dHead));
}

/**
 * For each layer what its heads read out on average over texts: [heads * dHead].
 * @param {Run[]} runs
 */
export function meansOf(runs) {
  return runs[0].layers.map((_, layer) => {
    const sum = new Float64Array(runs[0].layers[layer].read.length / runs[0].n);
    let count = 0;
    for (const run of runs) {
      const { read } = run.layers[layer];
      for (let i = 0; i < read.length; i++) sum[i % sum.length] += read[i];
      count += run.n;
    }
    return sum.map((value) => value / count);
  });
}
