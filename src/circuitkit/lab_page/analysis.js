/**
 * What a run is made of: the logit in parts, the attention score in parts, the effect of each head and wire, words.
 */
import { addProduct, attend, divisor, given, pass, planOf, turn, writtenBy } from "./engine.js";
import { headName, parseCut, parseGate, parseName } from "./names.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./engine.js").Numbers} Numbers */
/** @typedef {import("./engine.js").Means} Means */
/** @typedef {import("./engine.js").Changed & {layer: number}} Place  what a name changes */
/** @typedef {{name: string, value: number}} Part */

/**
 * The direction that the logit of a token is read along, against the mean over the vocabulary, in what the unembedding reads.
 * @param {Model} model @param {number} token
 */
function direction({ W_U, meanU, dContent, dVocab }, token) {
  const out = new Float64Array(dContent);
  for (let i = 0; i < dContent; i++) out[i] = W_U[i * dVocab + token] - meanU[i];
  return out;
}

/** What biases behind the stream add to the logit of a token, above the mean. @param {Model} model @param {number} token @param {Numbers} along */
function constant({ b_U, lnFinal, dVocab }, token, along) {
  const mean = b_U ? b_U.reduce((sum, value) => sum + value, 0) / dVocab : 0;
  return (lnFinal?.bias ? dot(lnFinal.bias, 0, along) : 0) + (b_U ? b_U[token] - mean : 0);
}

/** @param {Numbers} a @param {number} from @param {Numbers} b */
function dot(a, from, b) {
  let sum = 0;
  for (let i = 0; i < b.length; i++) sum += a[from + i] * b[i];
  return sum;
}

/**
 * A direction in front of a norm whose divisor is frozen: `x @ folded` is `norm(x) @ along` without the norm's bias.
 * @param {import("./weights.js").Norm | null | undefined} norm @param {Numbers} along @param {number} by
 */
function folded(norm, along, by) {
  if (!norm) return along;
  const out = Float64Array.from(along, (value, i) => (value * (norm.gain?.[i] ?? 1)) / by);
  const mean = norm.centred ? out.reduce((sum, value) => sum + value, 0) / out.length : 0;
  return out.map((value) => value - mean);
}

/**
 * The logit of a token above the mean logit at one position, as a sum over the parts of the stream.
 * @param {Model} model @param {Run} run @param {number} at @param {number} token
 * @returns {Part[]}
 */
export function logitParts(model, run, at, token) {
  const { dContent, lnFinal } = model;
  const along = direction(model, token);
  const read = folded(lnFinal, along, lnFinal ? divisor(lnFinal, run.stream, at * dContent, dContent) : 1);
  const parts = streamParts(model, run, model.nLayers, true).map(({ name, values, wide }) => ({ name, value: dot(values, wide * at, read) }));
  const rest = constant(model, token, along);
  return rest ? [...parts, { name: "bias", value: rest }] : parts;
}

/**
 * The names of all neurons, those that write most to the logit of a token at a position first, and what each gathers there.
 * @param {Model} model @param {Run} run @param {number} at @param {number} token
 */
export function neuronsByShare(model, run, at, token) {
  const { dContent, lnFinal } = model;
  const read = folded(lnFinal, direction(model, token), lnFinal ? divisor(lnFinal, run.stream, at * dContent, dContent) : 1);
  const found = run.layers.flatMap(({ post, fired }, layer) => {
    const { mlp } = model.layers[layer];
    if (!mlp || !post || !fired) return [];
    return Array.from({ length: mlp.size }, (_, i) => ({ name: `L${layer}N${i}`, fired: fired[at * mlp.size + i], share: Math.abs(post[at * mlp.size + i] * dot(mlp.W_out, i * dContent, read)) }));
  });
  found.sort((a, b) => b.share - a.share);
  return { names: found.map(({ name }) => name), fired: found.map((one) => one.fired) };
}

/**
 * From one position to another: the gate of each head as its weights make it, and the attention without the gate.
 * @param {Model} model @param {Run} run @param {number} at @param {number} source
 */
export function gatesAt(model, run, at, source) {
  const { n } = run;
  return Array.from({ length: model.nHeads }, (_, head) => {
    const { q, k, v, gates } = run.layers[0];
    const pattern = new Float32Array(model.nHeads * n * n);
    attend(model, q, k, v, head, n, at, pattern, new Float64Array(v.length), {});
    const place = (head * n + at) * n + source;
    return { name: headName(0, head), gate: gates?.[place] ?? 1, attention: pattern[place] };
  });
}

/**
 * What each part has written before a layer, `wide` numbers for a position (0: the same at each). The positions of the
 * models of the book have coordinates of their own, and are left out of what the unembedding reads.
 * @param {Model} model @param {Run} run @param {number} before @param {boolean} [atEnd]
 * @returns {{name: string, values: Numbers, wide: number, aside?: boolean}[]}
 */
function streamParts(model, run, before, atEnd = false) {
  const { dModel, dContent, addsPositions, W_E, W_pos } = model;
  /** @type {{name: string, values: Numbers, wide: number, aside?: boolean}[]} */
  const parts = [];
  if (addsPositions) {
    const words = new Float64Array(run.n * dContent);
    run.ids.forEach((id, i) => words.set(W_E.subarray(id * dContent, (id + 1) * dContent), i * dContent));
    parts.push({ name: "embed", values: words, wide: dContent }, { name: "pos", values: W_pos, wide: dContent });
  } else {
    parts.push({ name: "embed", values: run.start, wide: dModel });
    if (dModel > dContent && !atEnd) parts.push({ name: "pos", values: run.start, wide: dModel, aside: true });
  }
  run.layers.slice(0, before).forEach(({ wrote, mlp }, layer) => {
    wrote.forEach((values, head) => parts.push({ name: headName(layer, head), values, wide: dContent }));
    const { b_O } = model.layers[layer];
    if (b_O) parts.push({ name: `L${layer} bias`, values: b_O, wide: 0 });
    if (mlp) parts.push({ name: `L${layer} MLP`, values: mlp, wide: dContent });
  });
  return parts;
}

/**
 * The score of one head at (at, source), by what each part gives to the query and to the key: [query, key].
 * @param {Model} model @param {Run} run @param {number} layer @param {number} head @param {number} at @param {number} source
 */
export function scoreParts(model, run, layer, head, at, source) {
  const { dModel, dContent, dHead, nHeads, scale = Math.sqrt(dHead) } = model;
  const { ln1, ...weights } = model.layers[layer];
  const parts = streamParts(model, run, layer);
  const instead = run.patch && streamParts(model, run.patch, layer);
  const [wide, of] = [nHeads * dHead, head * dHead];
  const side = (/** @type {string} */ input, /** @type {number} */ position) => {
    const W = weights[/** @type {"W_Q"} */ (`W_${input}`)];
    const b = weights[/** @type {"b_Q"} */ (`b_${input}`)];
    // The norm is frozen at the divisor of what this input reads, in which cut wires are missing.
    const reader = `${headName(layer, head)}.${input}`;
    const gone = parts.map(({ name }) => run.cuts.has(`${name}->${reader}`));
    const whole = run.layers[layer].stream.slice(position * dModel, (position + 1) * dModel);
    parts.forEach(({ values, wide: w }, i) => gone[i] && whole.forEach((_, c) => (whole[c] -= (values[position * w + c] ?? 0) - (instead?.[i].values[position * w + c] ?? 0))));
    const lost = lostNeurons(model, run, reader, position);
    for (const values of lost.values()) values.forEach((value, c) => (whole[c] -= value));
    const by = ln1 ? divisor(ln1, whole, 0, dContent) : 1;
    const row = (/** @type {Numbers} */ values, /** @type {boolean} */ aside = false) => {
      const out = new Float64Array(dHead);
      const from = aside ? dContent : 0;
      addProduct(values, 0, 0, W, wide, of + from * wide, out, dHead, 0, 1, values.length, dHead);
      return out;
    };
    const rows = parts.map(({ name, values: own, wide: w, aside }, i) => {
      if (gone[i] && !instead) return new Float64Array(dHead);
      const values = gone[i] && instead ? instead[i].values : own;
      const size = aside ? dModel - dContent : dContent;
      const from = position * w + (aside ? dContent : 0);
      const part = Float64Array.from(values.subarray(from, from + size));
      lost.get(name)?.forEach((value, c) => (part[c] -= value));
      if (!ln1) return row(part, aside);
      const mean = ln1.centred ? part.reduce((sum, value) => sum + value, 0) / size : 0;
      return row(part.map((value, c) => ((value - mean) / by) * (ln1.gain?.[c] ?? 1)));
    });
    if (b || ln1?.bias) {
      const last = row(ln1?.bias ?? new Float64Array(dContent));
      if (b) for (let c = 0; c < dHead; c++) last[c] += b[of + c];
      rows.push(last);
    }
    for (const one of rows) turn(model, one, dHead, 0, position, 1);
    return rows;
  };
  const keys = side("K", source);
  const table = side("Q", at).map((q) => keys.map((k) => dot(q, 0, k) / scale));
  const names = parts.map(({ name }) => name);
  return { names: keys.length > names.length || table.length > names.length ? [...names, "bias"] : names, table };
}

/**
 * What the cut wires of neurons take from what each MLP writes to an input, at one position.
 * @param {Model} model @param {Run} run @param {string} reader @param {number} position
 * @returns {Map<string, Float64Array>}  by "L0 MLP"
 */
function lostNeurons(model, run, reader, position) {
  const { dContent } = model;
  const found = new Map();
  for (const name of run.cuts) {
    const named = parseName(name);
    if (named?.reader !== reader || named.from.kind !== "N") continue;
    const writer = name.split("->")[0];
    const row = (/** @type {Run} */ { layers, n }) => writtenBy(model, layers, writer, n).subarray(position * dContent, (position + 1) * dContent);
    const mlp = `L${named.from.layer} MLP`;
    const lost = found.get(mlp) ?? new Float64Array(dContent);
    const instead = run.patch && row(run.patch);
    row(run).forEach((value, c) => (lost[c] += value - (instead ? instead[c] : 0)));
    found.set(mlp, lost);
  }
  return found;
}

/** What a name changes in a run. @param {string} name @returns {Place} */
function changedBy(name) {
  const gate = parseGate(name);
  const { from, to, input } = /** @type {import("./names.js").Named} */ (parseName(gate ? gate.head : name));
  const { layer, kind, number } = to ?? from;
  if (kind === "MLP") return { layer, mlp: true };
  return { layer, [kind === "H" ? "head" : "neuron"]: number, ...(gate ? { input: "gate" } : to ? { input } : {}) };
}

/** How a change of the cuts changes one logit (above the mean) at one position. */
export class Effects {
  /**
   * @param {Model} model @param {Run} run @param {number} at @param {number} token
   * @param {Means | null} means @param {boolean} [wiresToo]
   */
  constructor(model, run, at, token, means, wiresToo = false) {
    this.model = model;
    this.run = run;
    this.at = at;
    this.means = means;
    this.wiresToo = wiresToo;
    this.along = direction(model, token);
    this.constant = constant(model, token, this.along);
    const { dContent } = model;
    this.now = this.logit(run.stream.subarray(at * dContent, (at + 1) * dContent));
  }

  /** @param {Float64Array} row  of the last stream */
  logit(row) {
    const { lnFinal } = this.model;
    return dot(row, 0, folded(lnFinal, this.along, lnFinal ? divisor(lnFinal, row, 0, row.length) : 1)) + this.constant;
  }

  /**
   * The effect of a head, a neuron, a wire or a gate: the logit with it minus the logit without it, everything else as in this run. One
   * that is off is switched on for this.
   * @param {string} name
   */
  of(name) {
    const { run, now } = this;
    const isOff = run.cuts.has(name);
    const place = changedBy(name);
    const reader = parseName(name)?.reader.split(".")[0] ?? "";
    const whole = place.neuron === undefined ? "" : `L${place.layer} MLP`;
    if (run.cuts.has(reader) || run.cuts.has(whole)) return 0; // what it reads does not matter
    const cuts = isOff ? [...run.cuts].filter((other) => other !== name) : [...run.cuts, name];
    const other = this.without(cuts, place);
    return isOff ? other - now : now - other;
  }

  /** The logit with other cuts, which change one head or neuron and what follows from it. @param {string[]} cuts @param {Place} changed */
  without(cuts, changed) {
    const { layer } = changed;
    const { model, run, at, means, wiresToo } = this;
    const plan = planOf({ cuts, means, wiresToo, patch: run.patch });
    const n = at + 1; // a position does not see what comes after it
    const layers = run.layers.slice(0, layer);
    let stream = run.layers[layer].stream.subarray(0, n * model.dModel);
    while (layers.length < model.nLayers) {
      const since = layers.length === model.nLayers - 1 ? at : 0;
      const some = layers.length === layer ? { since, changed, old: run.layers[layer] } : { since };
      const next = pass(model, layers, stream, n, plan, some);
      layers.push(next.done);
      stream = next.stream;
    }
    return this.logit(stream.slice(at * model.dModel, at * model.dModel + model.dContent));
  }
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
 * `W_E W_Q (W_E C W_K)^T / scale`, where C is the identity or the OV matrix of an earlier head. Where queries and keys are turned, the
 * source is `back` positions before the destination. Norms and biases are left out.
 * @param {Model} model @param {number} layer @param {number} head @param {number} token @param {string} [via]  an earlier head @param {number} [back]
 */
export function lookedFor(model, layer, head, token, via, back = 0) {
  const { dContent, dHead, dVocab, W_E, scale = Math.sqrt(dHead) } = model;
  const query = given(model, W_E.subarray(token * dContent, (token + 1) * dContent), 1, layer, head, "Q");
  turn(model, query, dHead, 0, back, 1);
  const writer = via ? parseCut(via) : null;
  const keys = given(model, writer ? throughHead(model, writer.layer, writer.head, W_E, dVocab) : W_E, dVocab, layer, head, "K");
  return Float32Array.from({ length: dVocab }, (_, i) => dot(keys, i * dHead, query) / scale);
}

/**
 * For each layer what its heads and its neurons read out on average over texts.
 * @param {Run[]} runs
 * @returns {Means}
 */
export function meansOf(runs) {
  const count = runs.reduce((sum, { n }) => sum + n, 0);
  const mean = (/** @type {Float64Array[]} */ all) => {
    const sum = new Float64Array(all[0].length / runs[0].n);
    for (const values of all) for (let i = 0; i < values.length; i++) sum[i % sum.length] += values[i];
    return sum.map((value) => value / count);
  };
  return runs[0].layers.map(({ fired }, layer) => ({
    z: mean(runs.map(({ layers }) => layers[layer].read)),
    post: fired && mean(runs.map(({ layers }) => /** @type {Float64Array} */ (layers[layer].fired))),
  }));
}
