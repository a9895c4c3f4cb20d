/**
 * A small attention-only model that is trained from nothing: its rows, the gradient of its loss, and the steps of the optimizer.
 * The forward pass is that of the lab, so a model can be taken apart in the lab at every step of its training.
 */
import { addProduct, forward, logits } from "./engine.js";
import { newRow, randomNumbers, SIZES, STEPS } from "./training_rows.js";

/** @typedef {import("./engine.js").Numbers} Numbers */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./weights.js").Layer} Layer */
/** @typedef {import("./training_rows.js").Recipe} Recipe */
/** @typedef {import("./training_rows.js").Row} Row */
/** @typedef {{loss: number, accuracy: number, previous: number, prefix: number}} Measures */

const HELD_OUT = 16; // rows that are never trained on
const RATE = { most: 7e-3, warm: 20, fall: 0.3 };
const ADAM = { first: 0.9, second: 0.98, decay: 0.01, tiny: 1e-8, clip: 1 };

/** @param {() => number} random @param {number} count @param {number} size  standard deviation */
function gaussians(random, count, size) {
  return Float32Array.from({ length: count }, () => size * Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()));
}

/**
 * The model before its first step. Positions are sines and cosines, which are not trained; only queries and keys read them.
 * @param {Recipe} recipe @param {typeof SIZES} [sizes]
 * @returns {Model}
 */
export function newModel({ seed, layers, blind }, { dVocab, dContent, dPosition, dHead, nCtx } = SIZES) {
  const random = randomNumbers(seed + 17);
  const dModel = dContent + dPosition;
  const W_E = gaussians(random, dVocab * dContent, 1);
  const W_U = gaussians(random, dContent * dVocab, 0.02);
  const half = dPosition / 2;
  const W_pos = Float32Array.from({ length: nCtx * dPosition }, (_, i) => {
    const [at, column] = [Math.floor(i / dPosition), i % dPosition];
    const angle = at * 1.6 * 50 ** (-(column % half) / (half - 1));
    return 2 * (column < half ? Math.cos(angle) : Math.sin(angle));
  });
  /** @type {Layer[]} */
  const made = [];
  for (let i = 0; i < layers; i++)
    made.push({
      W_Q: gaussians(random, dModel * dHead, 0.09),
      W_K: gaussians(random, dModel * dHead, 0.09),
      W_V: gaussians(random, dContent * dHead, 0.09),
      W_O: gaussians(random, dHead * dContent, 0.06),
      alone: blind && i === 0,
    });
  const meanU = new Float32Array(dContent); // only the lab's analysis reads it
  return { nLayers: layers, nHeads: 1, dHead, dModel, dContent, dVocab, nCtx, W_E, W_pos, W_U, meanU, layers: made };
}

/** The learning rate of a step: it rises at the start and falls to zero at the end. @param {number} step */
export function rateAt(step) {
  return RATE.most * Math.min(1, (step + 1) / RATE.warm, (STEPS - step) / (RATE.fall * STEPS));
}

/** Rows become columns. @param {Numbers} a  [n, m] @param {number} n @param {number} m */
function flipped(a, n, m) {
  const out = new Float64Array(n * m);
  for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) out[j * n + i] = a[i * m + j];
  return out;
}

/** out += a @ b, all whole. @param {Numbers} a @param {Numbers} b @param {Numbers} out @param {number} n @param {number} k @param {number} m */
function add(a, b, out, n, k, m) {
  addProduct(a, k, 0, b, m, 0, out, m, 0, n, k, m);
}

/**
 * The model as it is now, ready for the lab. @param {Model} model
 * @returns {Model}
 */
export function copyOf(model) {
  const { dContent, dVocab, W_U } = model;
  const meanU = Float32Array.from({ length: dContent }, (_, i) => W_U.subarray(i * dVocab, (i + 1) * dVocab).reduce((sum, value) => sum + value, 0) / dVocab);
  return structuredClone({ ...model, meanU });
}

/** The matrices that are trained, in a fixed order. @param {Model} model @returns {Float32Array[]} */
export function trained({ W_E, W_U, layers }) {
  return [W_E, W_U, ...layers.flatMap(({ W_Q, W_K, W_V, W_O }) => [W_Q, W_K, W_V, W_O])];
}

/**
 * The loss of one row: its gradient with respect to the logits, and what there is to count.
 * @param {Model} model @param {Run} run @param {Row} row @param {number} counted  tokens over which the mean is taken
 */
function lossOf(model, run, { ids, from }, counted) {
  const { dVocab } = model;
  const rows = run.n - from;
  const scores = logits(model, run, from);
  const slope = new Float64Array(rows * dVocab);
  let [loss, right] = [0, 0];
  for (let i = 0; i < rows; i++) {
    const row = scores.subarray(i * dVocab, (i + 1) * dVocab);
    const target = ids[from + i + 1];
    const most = Math.max(...row);
    let sum = 0;
    for (const score of row) sum += Math.exp(score - most);
    loss += (Math.log(sum) + most - row[target]) / counted;
    if (row[target] === most) right += 1 / counted;
    for (let j = 0; j < dVocab; j++) slope[i * dVocab + j] = Math.exp(row[j] - most) / sum / counted;
    slope[i * dVocab + target] -= 1 / counted;
  }
  return { loss, right, slope };
}

/**
 * Backwards through the attention of one head: from what it read to its queries, keys and values.
 * @param {import("./engine.js").LayerRun} layer @param {Numbers} dz  [n, dHead] @param {number} n @param {number} dHead
 */
function attentionBackward({ q, k, v, pattern }, dz, n, dHead) {
  const [dq, dk, dv] = [q, k, v].map((one) => new Float64Array(one.length));
  const slope = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const at = i * dHead;
    let mean = 0;
    for (let s = 0; s <= i; s++) {
      const share = pattern[i * n + s];
      if (!share) continue;
      let sum = 0;
      for (let c = 0; c < dHead; c++) {
        sum += dz[at + c] * v[s * dHead + c];
        dv[s * dHead + c] += share * dz[at + c];
      }
      slope[s] = sum;
      mean += share * sum;
    }
    for (let s = 0; s <= i; s++) {
      const score = (pattern[i * n + s] * (slope[s] - mean)) / Math.sqrt(dHead);
      if (!score) continue;
      for (let c = 0; c < dHead; c++) {
        dq[at + c] += score * k[s * dHead + c];
        dk[s * dHead + c] += score * q[at + c];
      }
    }
  }
  return { dq, dk, dv };
}

export class Trainer {
  /** @param {Recipe} recipe @param {typeof SIZES} [sizes] */
  constructor(recipe, sizes = SIZES) {
    this.recipe = recipe;
    this.sizes = sizes;
    this.model = newModel(recipe, sizes);
    this.weights = trained(this.model);
    const zeros = () => this.weights.map(({ length }) => new Float64Array(length));
    this.gradient = zeros();
    this.first = zeros();
    this.second = zeros();
    this.done = 0; // steps
    this.random = randomNumbers(recipe.seed * 7919 + 1);
    const other = randomNumbers(recipe.seed * 104729 + 5);
    this.heldOut = Array.from({ length: HELD_OUT }, () => newRow(other, true, sizes));
  }

  /** The rows of the next step. */
  batch() {
    return Array.from({ length: this.sizes.batch }, () => newRow(this.random, this.random() < this.recipe.share, this.sizes));
  }

  /**
   * Fill `gradient` with that of the mean loss over rows.
   * @param {Row[]} rows
   */
  differentiate(rows) {
    const { model } = this;
    for (const one of this.gradient) one.fill(0);
    const counted = rows.reduce((sum, { from }) => sum + model.nCtx - from, 0);
    const wide = model.dContent;
    const turned = {
      U: flipped(model.W_U, wide, model.dVocab),
      layers: model.layers.map(({ W_Q, W_K, W_V, W_O }) => ({
        Q: flipped(W_Q.subarray(0, wide * model.dHead), wide, model.dHead),
        K: flipped(W_K.subarray(0, wide * model.dHead), wide, model.dHead),
        V: flipped(W_V, wide, model.dHead),
        O: flipped(W_O, model.dHead, wide),
      })),
    };
    let loss = 0;
    for (const row of rows) {
      const run = forward(model, row.ids.slice(0, -1));
      const part = lossOf(model, run, row, counted);
      loss += part.loss;
      this.backward(run, row.from, part.slope, turned);
    }
    return loss;
  }

  /**
   * Add the gradient of one row.
   * @param {Run} run @param {number} from @param {Float64Array} slope  of the logits from there on
   * @param {{U: Numbers, layers: {Q: Numbers, K: Numbers, V: Numbers, O: Numbers}[]}} turned  the weights with rows as columns
   */
  backward(run, from, slope, turned) {
    const { dContent, dHead, dModel, dVocab, layers } = this.model;
    const { n } = run;
    const [gE, gU, ...rest] = this.gradient;
    add(flipped(run.final.subarray(from * dContent), n - from, dContent), slope, gU, dContent, n - from, dVocab);
    const down = new Float64Array(n * dContent); // the gradient of the stream, from the top to the tokens
    addProduct(slope, dVocab, 0, turned.U, dContent, 0, down, dContent, from * dContent, n - from, dVocab, dContent);
    for (let layer = layers.length - 1; layer >= 0; layer--) {
      const [gQ, gK, gV, gO] = rest.slice(4 * layer, 4 * layer + 4);
      const T = turned.layers[layer];
      const made = run.layers[layer];
      add(flipped(made.z, n, dHead), down, gO, dHead, n, dContent);
      const dz = new Float64Array(n * dHead);
      add(down, T.O, dz, n, dContent, dHead);
      const { dq, dk, dv } = attentionBackward(made, dz, n, dHead);
      const input = flipped(streamBefore(this.model, run, layer), n, dModel);
      add(input, dq, gQ, dModel, n, dHead);
      add(input, dk, gK, dModel, n, dHead);
      add(input.subarray(0, dContent * n), dv, gV, dContent, n, dHead);
      add(dq, T.Q, down, n, dHead, dContent);
      add(dk, T.K, down, n, dHead, dContent);
      add(dv, T.V, down, n, dHead, dContent);
    }
    run.ids.forEach((id, i) => {
      for (let c = 0; c < dContent; c++) gE[id * dContent + c] += down[i * dContent + c];
    });
  }

  /** One step of AdamW along the gradient, which is shortened to length 1 if it is longer. @param {number} rate */
  update(rate) {
    this.done++;
    let square = 0;
    for (const one of this.gradient) for (const g of one) square += g * g;
    const scale = Math.min(1, ADAM.clip / (Math.sqrt(square) + 1e-6));
    const [c1, c2] = [1 - ADAM.first ** this.done, 1 - ADAM.second ** this.done];
    this.weights.forEach((w, k) => {
      const [gradient, first, second] = [this.gradient[k], this.first[k], this.second[k]];
      for (let i = 0; i < w.length; i++) {
        const g = gradient[i] * scale;
        first[i] += (1 - ADAM.first) * (g - first[i]);
        second[i] += (1 - ADAM.second) * (g * g - second[i]);
        w[i] -= rate * (ADAM.decay * w[i] + first[i] / c1 / (Math.sqrt(second[i] / c2) + ADAM.tiny));
      }
    });
  }

  /** Train on the next rows; returns the loss before the step. */
  step() {
    const loss = this.differentiate(this.batch());
    this.update(rateAt(this.done));
    return loss;
  }

  /**
   * What the model does on rows with repeats that it was never trained on.
   * @returns {Measures}
   */
  measure() {
    const { model, heldOut } = this;
    const counted = heldOut.reduce((sum, { from }) => sum + model.nCtx - from, 0);
    const sum = { loss: 0, accuracy: 0, previous: 0, prefix: 0 };
    for (const row of heldOut) {
      const run = forward(model, row.ids.slice(0, -1));
      const { loss, right } = lossOf(model, run, row, counted);
      sum.loss += loss;
      sum.accuracy += right;
      sum.previous += previousToken(run.layers[0].pattern, run.n) / heldOut.length;
      sum.prefix += prefixMatching(run.layers[model.nLayers - 1].pattern, run.n, row) / counted;
    }
    return sum;
  }
}

/** The stream that a layer reads. @param {Model} model @param {Run} run @param {number} layer */
function streamBefore({ dContent, dModel }, run, layer) {
  const stream = run.start.slice();
  for (const { wrote } of run.layers.slice(0, layer))
    for (let i = 0; i < run.n; i++) for (let c = 0; c < dContent; c++) stream[i * dModel + c] += wrote[0][i * dContent + c];
  return stream;
}

/** The mean attention to the position before. @param {Float32Array} pattern @param {number} n */
function previousToken(pattern, n) {
  let sum = 0;
  for (let i = 1; i < n; i++) sum += pattern[i * n + i - 1];
  return sum / (n - 1);
}

/** The attention from each token that has occurred before to the tokens after its earlier occurrences, summed. @param {Float32Array} pattern @param {number} n @param {Row} row */
function prefixMatching(pattern, n, { from, period }) {
  let sum = 0;
  for (let i = from; i < n; i++) for (let s = i - period + 1; s > 1; s -= period) sum += pattern[i * n + s];
  return sum;
}
