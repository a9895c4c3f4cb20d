/**
 * From a safetensors file, the one that the library reads, to matrices.
 */

/** @typedef {{shape: number[], values: Float32Array}} Tensor */
/** @typedef {{W_Q: Float32Array, W_K: Float32Array, W_V: Float32Array, W_O: Float32Array, alone?: boolean}} Layer  alone: each position attends to itself only */
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
 * @property {Float32Array} W_pos  [nCtx, dModel - dContent]
 * @property {Float32Array} W_U  [dContent, dVocab]
 * @property {Float32Array} meanU  [dContent], the mean column of W_U
 * @property {Layer[]} layers  W_Q and W_K [dModel, heads], W_V and W_O [dContent, dContent]
 */

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

/**
 * @param {string} text
 * @returns {Uint8Array}
 */
export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * The tensors of a file in half precision or in 8 bits with their scales.
 * @param {Uint8Array} bytes
 * @returns {Map<string, Tensor>}
 */
export function readTensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  delete header.__metadata__;
  const half = halves();
  /** @type {Map<string, Tensor>} */
  const found = new Map();
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    const raw = bytes.slice(start + from, start + to).buffer;
    if (dtype === "F16") found.set(name, { shape, values: Float32Array.from(new Uint16Array(raw), (bits) => half[bits]) });
    else if (dtype === "I8") found.set(name, { shape, values: Float32Array.from(new Int8Array(raw)) });
    else throw new Error(`${name} is stored as ${dtype}; expected F16 or I8`);
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
 * @param {Map<string, Tensor>} tensors
 * @param {number} dHead
 * @returns {Model}
 */
export function buildModel(tensors, dHead) {
  const get = (/** @type {string} */ name) => {
    const tensor = tensors.get(name);
    if (!tensor) throw new Error(`the file has no ${name}`);
    return tensor;
  };
  const [dVocab, dContent] = get("W_E").shape;
  const [nCtx, dPosition] = get("W_pos").shape;
  const layers = [];
  for (let i = 0; tensors.has(`layers.${i}.W_Q`); i++) {
    const at = (/** @type {string} */ name) => get(`layers.${i}.W_${name}`).values;
    layers.push({ W_Q: at("Q"), W_K: at("K"), W_V: at("V"), W_O: at("O") });
  }
  const W_U = get("W_U").values;
  const meanU = new Float32Array(dContent);
  for (let i = 0; i < dContent; i++) {
    let sum = 0;
    for (let j = 0; j < dVocab; j++) sum += W_U[i * dVocab + j];
    meanU[i] = sum / dVocab;
  }
  return {
    nLayers: layers.length,
    nHeads: layers.length ? get("layers.0.W_Q").shape[1] / dHead : 0,
    dHead,
    dModel: dContent + dPosition,
    dContent,
    dVocab,
    nCtx,
    W_E: get("W_E").values,
    W_pos: get("W_pos").values,
    W_U,
    meanU,
    layers,
  };
}
