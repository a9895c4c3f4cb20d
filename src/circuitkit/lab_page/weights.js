/**
 * From a safetensors file, the one that the library reads, to a model that `engine.js` can run.
 *
 * How a model is handed over. `Bench.model({name, weights, card})` of `worker.js` takes the bytes of a safetensors file (or base64 of
 * them), or the tensors themselves: an object `{W_E: {shape, values}, ...}`. Rows multiply from the left. The tensors are
 *
 *     W_E [dVocab, d], W_U [d, dVocab], b_U; W_pos [nCtx, d], which is added to the stream; ln_final.gain, ln_final.bias
 *     layers.0.W_Q [d, heads * dHead], W_K and W_V [d, groups * dHead], W_O [heads * dHead, d], b_Q, b_K, b_V, b_O
 *     layers.0.ln1.gain, ln1.bias, ln2.gain, ln2.bias; W_in [d, m], b_in, W_gate, b_gate, W_out [m, d], b_out
 *
 * a gated block of chapter 5 has layers.0.W_GQ and W_GK [d, heads * dGate], b_GQ and b_GK, too,
 * and whatever is missing does not exist in the model. A `W_pos` [nCtx, dPosition] without `card.addsPositions` has coordinates of its
 * own, which queries and keys alone read, as in the models of the book: there W_Q and W_K are [d + dPosition, heads * dHead].
 * A finished `model` in place of `weights` is taken as it is (`Model`). The `card` says what tensors cannot (see `Card`). Besides, it may hold `tokens`, the text of each token, and `rows`, lists of token
 * ids: the rows that a reader can choose, and over which means are taken. Without them, the tokenizer of the book reads the text.
 */

/** @typedef {{shape: number[], values: Float32Array}} Tensor */
/** @typedef {{centred: boolean, eps: number, gain: Float32Array | null, bias: Float32Array | null}} Norm  LayerNorm, or RMSNorm where it is not centred */
/** @typedef {{W_in: Float32Array, b_in?: Float32Array, W_gate?: Float32Array, b_gate?: Float32Array, W_out: Float32Array, b_out?: Float32Array, size: number, terms?: number[][]}} Mlp  `terms`: the heads that stand for a neuron, [b, c, a, d] of each */
/** @typedef {{W_Q: Float32Array, W_K: Float32Array, b_Q?: Float32Array, b_K?: Float32Array, wide: number}} Gate  a second score, for each head `wide` columns */
/**
 * @typedef {object} Layer
 * @property {Float32Array} W_Q
 * @property {Float32Array} W_K  with a block of columns for each head, also where heads share one; so has W_V
 * @property {Float32Array} W_V
 * @property {Float32Array} W_O
 * @property {Float32Array} [b_Q]
 * @property {Float32Array} [b_K]
 * @property {Float32Array} [b_V]
 * @property {Float32Array} [b_O]
 * @property {Norm | null} [ln1]  before the heads
 * @property {Norm | null} [ln2]  before the MLP
 * @property {Mlp | null} [mlp]
 * @property {Gate | null} [gate]  that multiplies the patterns
 * @property {boolean} [alone]  whether each position attends to itself only
 */
/**
 * @typedef {object} Card  what a file says of its model
 * @property {number} dHead
 * @property {number} [nCtx]  where there is no W_pos
 * @property {boolean} [addsPositions]
 * @property {number} [scale]  by which scores are divided; the square root of dHead if it is missing
 * @property {"LN" | "RMS"} [norm]
 * @property {number} [eps]
 * @property {"relu" | "silu" | "gelu" | "gelu_new"} [act]
 * @property {boolean} [parallel]  whether the MLP of a layer reads what its heads read
 * @property {{planes: number[][], angles: number[], gain?: number}} [rotary]  of queries and keys
 * @property {string[]} [tokens]
 * @property {number[][]} [rows]
 * @property {boolean} [named]  whether a reader types the texts of the tokens, and not their ids
 * @property {{vocab: string[], merges: number[], start?: number[]}} [bpe]  with which a reader's text is read
 */
/**
 * @typedef {object} Model  rows multiply from the left, as in the library
 * @property {number} nLayers
 * @property {number} nHeads
 * @property {number} dHead
 * @property {number} dModel  content and position together
 * @property {number} dContent  what values read, heads write and the unembedding reads
 * @property {number} dVocab
 * @property {number} nCtx
 * @property {Float32Array} W_E  [dVocab, dContent]
 * @property {Float32Array} W_pos  [nCtx, dModel - dContent], or [nCtx, dContent] if it is added; may be empty
 * @property {boolean} [addsPositions]
 * @property {Float32Array} W_U  [dContent, dVocab]
 * @property {Float32Array} meanU  [dContent], the mean column of W_U
 * @property {Float32Array | null} [b_U]
 * @property {Norm | null} [lnFinal]
 * @property {Layer[]} layers  W_Q and W_K [dModel, heads], W_V and W_O [dContent, dContent]
 * @property {number} [scale]  the square root of dHead if it is missing
 * @property {string} [act]
 * @property {boolean} [parallel]
 * @property {Rotation | null} [rotary]
 */
/** @typedef {{planes: number[][], cos: Float64Array, sin: Float64Array}} Rotation  [nCtx, plane] */

/** What a model of this engine may have at most. A file is refused before it costs time. */
export const LIMITS = { weights: 3_300_000, layers: 12, heads: 16, positions: 256, header: 4_000_000 };

/** Every half-precision number, by its bits. */
function halves() {
  const table = new Float32Array(1 << 16);
  for (let bits = 0; bits < table.length; bits++) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
    table[bits] = bits >> 15 ? -size : size;
  }
  return table;
}

/** @param {string} reason */
export function damaged(reason) {
  return new Error(`the file is damaged (${reason})`);
}

/** JSON of a file. @param {string} text @returns {any} */
export function fromJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw damaged("what it says of its model is no JSON");
  }
}

/**
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromBase64(text) {
  let binary;
  try {
    binary = atob(text);
  } catch {
    throw damaged("its weights are not in base64");
  }
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * Bytes that gzip has packed, or bytes as they are. It stops where no model of the lab could go on.
 * @param {Uint8Array} bytes
 */
export async function unpacked(bytes) {
  if (bytes[0] !== 31 || bytes[1] !== 139) return bytes;
  const reader = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = [];
  let size = 0;
  const read = () => reader.read().catch(() => Promise.reject(damaged("its weights cannot be unpacked")));
  for (let next = await read(); !next.done; next = await read()) {
    parts.push(next.value);
    size += next.value.length;
    if (size > 4 * LIMITS.weights + LIMITS.header) throw new Error("its weights are more than the lab reads");
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/**
 * The header of a safetensors file, and where its tensors begin.
 * @param {Uint8Array} bytes
 * @returns {{header: Record<string, any>, start: number}}
 */
export function readHeader(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = bytes.length < 8 ? 0 : Number(view.getBigUint64(0, true));
  if (length < 2 || length > Math.min(LIMITS.header, bytes.length - 8)) throw damaged(`its header would have ${length} bytes`);
  const header = fromJson(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  if (!header || typeof header !== "object" || Array.isArray(header)) throw damaged("its header is no object");
  return { header, start: 8 + length };
}

const SIZES = { F16: 2, F32: 4, I8: 1 };

/**
 * The tensors of a file in half or single precision, or in 8 bits with their scales.
 * @param {Uint8Array} bytes
 * @returns {Map<string, Tensor>}
 */
export function readTensors(bytes) {
  const { header, start } = readHeader(bytes);
  delete header.__metadata__;
  const half = halves();
  /** @type {Map<string, Tensor>} */
  const found = new Map();
  let total = 0;
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    const size = SIZES[/** @type {"F16"} */ (dtype)];
    if (!size) throw new Error(`${name} is stored as ${dtype}; expected F16, F32 or I8`);
    const whole = (/** @type {unknown} */ value) => Array.isArray(value) && value.every((one) => Number.isSafeInteger(one) && one >= 0);
    const [from, to] = whole(data_offsets) ? data_offsets : [0, -1];
    if (!whole(shape) || shape.length > 2 || to > bytes.length - start || to - from !== size * shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1))
      throw damaged(`${name} does not fit its place`);
    total += (to - from) / size;
    if (total > LIMITS.weights) throw new Error(`the file has more than ${LIMITS.weights} numbers, the most that the lab reads`);
    const raw = bytes.slice(start + from, start + to).buffer;
    const values = dtype === "F16" ? Float32Array.from(new Uint16Array(raw), (bits) => half[bits]) : dtype === "F32" ? new Float32Array(raw) : Float32Array.from(new Int8Array(raw));
    if (!values.every(Number.isFinite)) throw damaged(`${name} has values that are not finite numbers`);
    found.set(name, { shape, values });
  }
  for (const [name, { shape: [, columns], values }] of found) {
    const scale = found.get(`${name}.scale`);
    if (!scale) continue;
    const byRow = scale.shape[0] > 1;
    for (let i = 0; i < values.length; i++) values[i] *= scale.values[byRow ? Math.floor(i / columns) : i % columns];
  }
  return found;
}

/**
 * A matrix with a block of columns for each head, from one with a block for each group of heads.
 * @param {Float32Array} values @param {number} rows @param {number} heads @param {number} groups @param {number} dHead
 */
function forEachHead(values, rows, heads, groups, dHead) {
  if (groups === heads) return values;
  const out = new Float32Array(rows * heads * dHead);
  for (let row = 0; row < rows; row++)
    for (let head = 0; head < heads; head++) {
      const from = (row * groups + Math.floor((head * groups) / heads)) * dHead;
      out.set(values.subarray(from, from + dHead), (row * heads + head) * dHead);
    }
  return out;
}

/**
 * The table of a rotation; angles and factors have the precision that the model's own table has.
 * @param {NonNullable<Card["rotary"]>} rotary @param {number} nCtx @param {number} dHead
 * @returns {Rotation}
 */
function rotation({ planes, angles, gain = 1 }, nCtx, dHead) {
  const inside = (/** @type {unknown} */ i) => Number.isInteger(i) && Number(i) >= 0 && Number(i) < dHead;
  if (!(planes?.length === angles?.length && planes.length <= dHead && planes.every((pair) => pair.length === 2 && pair.every(inside)) && [...angles, gain].every(Number.isFinite)))
    throw new Error("the rotation does not fit the heads");
  const table = (/** @type {(x: number) => number} */ turn) => Float64Array.from({ length: nCtx * planes.length }, (_, i) => Math.fround(gain * turn(Math.fround(Math.floor(i / planes.length) * angles[i % planes.length]))));
  return { planes, cos: table(Math.cos), sin: table(Math.sin) };
}

/**
 * A model from its tensors; every shape is compared with the others.
 * @param {Map<string, Tensor>} tensors
 * @param {Card} card
 * @returns {Model}
 */
export function buildModel(tensors, card) {
  const { dHead } = card;
  const addsPositions = Boolean(card.addsPositions) && tensors.has("W_pos");
  /** A tensor of this shape. @param {string} name @param {number[]} expected */
  const maybe = (name, ...expected) => {
    const tensor = tensors.get(name);
    const { shape = [], values = undefined } = tensor ?? {};
    if (values && expected.length && shape.join() !== expected.join()) throw new Error(`${name} has the shape ${shape.join(" × ")}; expected ${expected.join(" × ")}`);
    return values;
  };
  const get = (/** @type {string} */ name, /** @type {number[]} */ ...expected) => {
    const values = maybe(name, ...expected);
    if (!values) throw new Error(`the file has no ${name}`);
    return values;
  };
  const sizes = (/** @type {string} */ name) => tensors.get(name)?.shape ?? [];
  const W_E = get("W_E");
  const [dVocab, dContent] = sizes("W_E");
  const [nCtx = card.nCtx ?? 0, dPosition = 0] = sizes("W_pos");
  const dModel = dContent + (addsPositions ? 0 : dPosition);
  const W_pos = maybe("W_pos", nCtx, addsPositions ? dContent : dPosition) ?? new Float32Array();
  const nLayers = Array.from({ length: LIMITS.layers + 1 }, (_, i) => i).findIndex((i) => !tensors.has(`layers.${i}.W_Q`));
  const nHeads = nLayers ? sizes("layers.0.W_Q")[1] / dHead : 0;
  const whole = [dVocab, dContent, dHead, nHeads + 1, nCtx].every((size) => Number.isInteger(size) && size > 0);
  if (!whole || nLayers < 0 || nHeads > LIMITS.heads || nCtx > LIMITS.positions)
    throw new Error(`the lab reads models of at most ${LIMITS.layers} layers, ${LIMITS.heads} heads in a layer and ${LIMITS.positions} positions; this file has ${nHeads} heads and ${nCtx} positions`);
  const { norm = "LN", eps = 1e-5, act = "gelu", parallel = false, scale = Math.sqrt(dHead) } = card;
  if (!["LN", "RMS"].includes(norm) || !ACTS.includes(act) || !(eps >= 0) || !(scale > 0)) throw new Error(`the lab does not know a model with norm ${norm}, eps ${eps}, activation ${act} and scale ${scale}`);
  const normAt = (/** @type {string} */ place) => (tensors.has(`${place}.gain`) ? { centred: norm === "LN", eps, gain: get(`${place}.gain`, dContent), bias: maybe(`${place}.bias`, dContent) ?? null } : null);
  if (dModel > dContent && [...tensors.keys()].some((name) => /gain$|W_in$/.test(name))) throw new Error("norms and MLPs need positions that are added to the stream");
  const wide = nHeads * dHead;
  const layers = Array.from({ length: nLayers }, (_, i) => {
    const at = (/** @type {string} */ name) => `layers.${i}.${name}`;
    const groups = sizes(at("W_K"))[1] / dHead;
    if (!Number.isInteger(groups) || nHeads % groups) throw new Error(`${nHeads} heads cannot share ${groups} keys`);
    const shared = (/** @type {string} */ letter, /** @type {number} */ rows) => forEachHead(get(at(`W_${letter}`), rows, groups * dHead), rows, nHeads, groups, dHead);
    const bias = (/** @type {string} */ letter) => {
      const values = maybe(at(`b_${letter}`), groups * dHead);
      return values && forEachHead(values, 1, nHeads, groups, dHead);
    };
    const size = sizes(at("W_in"))[1];
    const gates = sizes(at("W_GQ"))[1];
    return {
      W_Q: get(at("W_Q"), dModel, wide), W_K: shared("K", dModel), W_V: shared("V", dContent), W_O: get(at("W_O"), wide, dContent),
      b_Q: maybe(at("b_Q"), wide), b_K: bias("K"), b_V: bias("V"), b_O: maybe(at("b_O"), dContent),
      gate: gates
        ? { wide: gates / nHeads, W_Q: get(at("W_GQ"), dModel, gates), W_K: get(at("W_GK"), dModel, gates), b_Q: maybe(at("b_GQ"), gates), b_K: maybe(at("b_GK"), gates) }
        : null,
      ln1: normAt(at("ln1")),
      ln2: normAt(at("ln2")),
      mlp: size
        ? {
            size, W_in: get(at("W_in"), dContent, size), b_in: maybe(at("b_in"), size), W_gate: maybe(at("W_gate"), dContent, size),
            b_gate: maybe(at("b_gate"), size), W_out: get(at("W_out"), size, dContent), b_out: maybe(at("b_out"), dContent),
          }
        : null,
    };
  });
  const W_U = get("W_U", dContent, dVocab);
  const meanU = new Float32Array(dContent);
  for (let i = 0; i < dContent; i++) {
    let sum = 0;
    for (let j = 0; j < dVocab; j++) sum += W_U[i * dVocab + j];
    meanU[i] = sum / dVocab;
  }
  return {
    nLayers, nHeads, dHead, dModel, dContent, dVocab, nCtx, W_E, W_pos, addsPositions, W_U, meanU,
    b_U: maybe("b_U", dVocab) ?? null,
    lnFinal: normAt("ln_final"),
    layers, scale, act, parallel,
    rotary: card.rotary ? rotation(card.rotary, nCtx, dHead) : null,
  };
}

const ACTS = ["relu", "silu", "gelu", "gelu_new"];

/** What names can name in a model. @param {Model} model @returns {import("./names.js").Shape} */
export function sizesOf({ nLayers, nHeads, layers }) {
  return { nLayers, nHeads, nNeurons: Math.max(0, ...layers.map(({ mlp }) => mlp?.size ?? 0)), asHeads: layers[0]?.mlp?.terms?.length ?? 0, gated: Boolean(layers[0]?.gate) };
}
