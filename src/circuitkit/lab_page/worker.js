/**
 * The side of the lab that computes: it holds the models and answers one question after the other.
 */
import { Tokenizer } from "./tokenizer.js";
import { AGREES, compare, readLab } from "./own.js";
import { buildModel, fromBase64, readTensors, sizesOf, unpacked } from "./weights.js";
import { forward, logits, neuronHeads, neuronReads, softmax } from "./engine.js";
import { allNames, parseCut, parseName } from "./names.js";
import { failure } from "./failure.js";
import { Effects, gatesAt, largest, logitParts, lookedFor, meansOf, neuronsByShare, scoreParts, writtenFor } from "./analysis.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./engine.js").Means} Means */
/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./interface.js").Setting} Setting */

/** @typedef {{encode: (text: string, enough?: number) => number[], show: (id: number) => string}} Reader  of texts */
/**
 * @typedef {object} Held  a model, and what belongs to it
 * @property {Model} model
 * @property {Reader} reader
 * @property {number[][]} rows  over which means are taken
 * @property {boolean} wiresToo  whether means fill cut wires, too
 * @property {Means | null} means
 * @property {Record<string, number[][]>} [sums]  by how many there are, the heads that can stand for a neuron
 */

/** The tokens of a model that comes with their texts. A reader's text is read by its own tokenizer, or consists of token ids. */
export class TokenList {
  /** @param {import("./weights.js").Card} card @param {number} dVocab */
  constructor({ tokens, bpe, named = false }, dVocab) {
    this.tokens = tokens ?? Array.from({ length: dVocab }, (_, id) => String(id));
    this.size = dVocab;
    this.named = named;
    this.bpe = bpe ? new Tokenizer(bpe) : null;
  }

  /** @param {string} text @param {number} [enough] @returns {number[]} */
  encode(text, enough) {
    if (this.bpe) return this.bpe.encode(text, enough);
    const words = text.split(/[\s,]+/).filter(Boolean);
    const ids = words.map((word) => (this.named ? this.tokens.indexOf(word) : Number(word)));
    if (this.named && (ids.includes(-1) || !ids.length)) throw new Error(`write tokens with spaces between them; this model knows ${this.tokens.join(" ")}`);
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < this.size));
    if (wrong !== undefined || !ids.length) throw new Error(`write token ids from 0 to ${this.size - 1}, such as 5 9 3`);
    return ids;
  }

  /** @param {number} id */
  show(id) {
    return this.tokens[id];
  }
}

export class Bench {
  constructor() {
    /** @type {Tokenizer | null} */
    this.tokenizer = null;
    /** @type {number[][]} rows of held-out text, over which means are taken */
    this.rows = [];
    /** @type {Map<string, Held>} */
    this.models = new Map();
    /** @type {{key: string, run: Run, logits: Float32Array}[]} the last runs, newest first */
    this.recent = [];
  }

  /** The first message: whether there is a worker at all. */
  ready() {
    return true;
  }

  /** @param {{data: string}} given  JSON, which is read here and not on the page's side */
  text({ data: given }) {
    /** @type {{vocab: string[], merges: number[], rows: number[][]}} */
    const data = JSON.parse(given);
    this.tokenizer = new Tokenizer(data);
    this.rows = data.rows;
  }

  /**
   * A model; `weights.js` says in which forms it can be handed over.
   * @param {{name: string, dHead?: number, card?: import("./weights.js").Card, weights?: string | Uint8Array | Record<string, import("./weights.js").Tensor>, model?: Model, sums?: Held["sums"]}} data
   */
  model({ name, dHead, card, weights = {}, model: made, sums }) {
    if (this.models.has(name)) return;
    const bytes = typeof weights === "string" ? fromBase64(weights) : weights;
    const tensors = bytes instanceof Uint8Array ? readTensors(bytes) : new Map(Object.entries(bytes));
    const model = made ?? buildModel(tensors, card ?? { dHead: Number(dHead) });
    const reader = card?.rows ? new TokenList(card, model.dVocab) : this.tokenizer;
    if (!reader) throw new Error("the tokenizer has not been loaded");
    this.models.set(name, { model, reader, rows: card?.rows ?? this.rows, wiresToo: card?.rows !== undefined, means: null, sums });
  }

  /** A copy of a model, with some heads in the place of each neuron. @param {{name: string, of: string, heads: number}} question */
  copy({ name, of, heads }) {
    const { sums = {}, model, ...held } = this.held(of);
    const layers = model.layers.map((layer) => ({ ...layer, mlp: layer.mlp && { ...layer.mlp, terms: sums[heads] } }));
    this.models.set(name, { ...held, model: { ...model, layers }, means: null });
  }

  /**
   * A file of `ck.lab`: it is read and compared with PyTorch.
   * @param {{name: string, weights: string | Uint8Array}} data
   * @returns {Promise<import("./interface.js").OwnModel>}
   */
  async open({ name, weights }) {
    const bytes = await unpacked(typeof weights === "string" ? fromBase64(weights) : weights);
    const { card, model, tensors } = readLab(bytes);
    const reader = new TokenList(card, model.dVocab);
    // A tokenizer that reads the texts in another way than the model's own is not used.
    const reads = card.bpe && card.texts?.every((text, i) => reader.encode(text, model.nCtx + 1).join() === card.rows[i].join());
    if (!reads) reader.bpe = null;
    const compared = compare(model, card, tensors);
    if (!(compared.difference <= AGREES * compared.largest))
      throw new Error(`the page computes other logits than PyTorch: the largest difference is ${compared.difference.toPrecision(2)}, and the largest logit is ${compared.largest.toPrecision(3)}`);
    this.models.set(name, { model, reader, rows: card.rows, wiresToo: true, means: null });
    this.recent = [];
    const gap = card.tokens[0] === "0" ? " " : ""; // between bare numbers
    const rows = card.rows.map((ids, i) => ({ text: reads && card.texts ? card.texts[i] : ids.join(" "), shown: ids.map((id) => reader.show(id)).join(gap) }));
    return { title: card.title, ...sizesOf(model), rows, rotary: Boolean(model.rotary), types: Boolean(reads), rounding: card.rounding, ...compared };
  }

  /** All the ids of a text. @param {string} text */
  ids(text) {
    return this.tokenizer?.encode(text);
  }

  /** @param {string} name */
  held(name) {
    const held = this.models.get(name);
    if (!held) throw new Error(`${name} has not been loaded`);
    return held;
  }

  /** What heads read out on average over the rows of a model. @param {string} name @param {Setting["fill"]} fill */
  meansFor(name, fill) {
    const held = this.held(name);
    const { model, rows } = held;
    if (fill !== "mean" || !model.nLayers) return null;
    held.means ??= meansOf(rows.map((ids) => forward(model, ids)));
    return held.means;
  }

  /** @param {string} name @param {number[]} ids @param {string[]} cuts @param {Means | null} means @param {Run | null} [patch] */
  ran(name, ids, cuts, means, patch = null) {
    const { model, wiresToo } = this.held(name);
    const key = [name, ids, cuts, cuts.length && means ? "mean" : "zero", patch ? patch.ids : ""].join(" ");
    let recent = this.recent.find((one) => one.key === key);
    if (!recent) {
      const run = forward(model, ids, { cuts, means, wiresToo, patch });
      recent = { key, run, logits: logits(model, run) };
    }
    this.recent = [recent, ...this.recent.filter((one) => one !== recent)].slice(0, 3);
    return recent;
  }

  /**
   * The run of the whole model and the run with the cuts of a setting.
   * @param {Setting} setting
   */
  runs(setting) {
    const { model: name, text, fill, cuts, other } = setting;
    const { model, reader } = this.held(name);
    const all = reader.encode(text, model.nCtx + 1);
    if (!all.length) throw new Error("the text has no tokens, and the model needs at least one");
    const ids = all.slice(0, model.nCtx);
    const means = this.meansFor(name, fill);
    const before = this.ran(name, ids, [], null);
    const second = typeof other === "string" ? this.ran(name, reader.encode(other, model.nCtx + 1).slice(0, model.nCtx), [], null) : null;
    // As in the library, values can only be taken from a text of the same length.
    const fits = second?.run.n === ids.length;
    const after = fill !== "patch" ? this.ran(name, ids, cuts, means) : second && fits ? this.ran(name, ids, cuts, null, second.run) : before;
    return { model, ids, reader, cropped: all.length > model.nCtx, means, before, after, second, fits };
  }

  /**
   * @param {Setting & {all?: boolean}} setting
   * @returns {Reply}
   */
  run(setting) {
    const { model, ids, reader, cropped, before, after, second, fits } = this.runs(setting);
    const n = ids.length;
    const at = setting.at < 0 || setting.at >= n ? n - 1 : setting.at;
    const row = (/** @type {Float32Array} */ all, /** @type {number} */ i) =>
      softmax(all.subarray(i * model.dVocab, (i + 1) * model.dVocab));
    const [was, is] = [row(before.logits, at), row(after.logits, at)];
    const there = second && fits ? row(second.logits, at) : null;
    const guess = (/** @type {number} */ id) => ({ id, text: reader.show(id), before: was[id], after: is[id], ...(there ? { other: there[id] } : {}) });
    const first = largest(was, 5);
    const chosen = setting.answer >= 0 && setting.answer < model.dVocab ? setting.answer : first[0];
    const listed = [...new Set([...first, ...largest(is, 5), ...(there ? largest(there, 3) : [])])];
    const why = failure(model, after.run, at, after.logits.subarray(at * model.dVocab, (at + 1) * model.dVocab));
    const predicted = ids.slice(1).map((id, i) => ({ before: row(before.logits, i)[id], after: row(after.logits, i)[id] }));
    return {
      tokens: ids.map((id) => ({ id, text: reader.show(id) })),
      cropped,
      at,
      ...sizesOf(model),
      patterns: after.run.layers.map(({ pattern }) => pattern),
      answer: guess(chosen),
      guesses: listed.map(guess).sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after)),
      predicted,
      other: second ? { count: second.run.n, fits } : null,
      parts: {
        before: logitParts(model, before.run, at, chosen),
        after: logitParts(model, after.run, at, chosen),
      },
      failure: why && { ...why, winner: guess(why.winner), token: guess(why.token) },
      ...(setting.all ? { logits: after.logits } : {}),
    };
  }

  /** The effects of all heads and wires. @param {Setting} setting */
  effects(setting) {
    return this.measure(setting).found;
  }

  /**
   * The effects of heads and wires, in the run with the cuts: as many as can be measured in the time, beginning with number `from`.
   * @param {Setting & {from?: number, time?: number, names?: string[]}} setting  `names`: of what is measured; all heads and wires between them
   * @returns {{found: Record<string, number>, next: number}} `next` is 0 when all are measured
   */
  measure(setting) {
    const { from = 0, time = Infinity, at, answer, model: name, names = allNames(...this.size(name)) } = setting;
    const { model, means, after, fits } = this.runs(setting);
    if (setting.fill === "patch" && !fits) return { found: {}, next: 0 };
    const effects = new Effects(model, after.run, at, answer, means, this.held(name).wiresToo);
    const end = performance.now() + time;
    /** @type {Record<string, number>} */
    const found = {};
    let next = from;
    while (next < names.length && (next === from || performance.now() < end)) {
      found[names[next]] = effects.of(names[next]);
      next++;
    }
    return { found, next: next < names.length ? next : 0 };
  }

  /** @param {string} name @returns {[number, number]} */
  size(name) {
    const { nLayers, nHeads } = this.held(name).model;
    return [nLayers, nHeads];
  }

  /** The neurons, those that write most to the logit of the answer first. @param {Setting} setting */
  neurons(setting) {
    const { model, after } = this.runs(setting);
    return neuronsByShare(model, after.run, setting.at, setting.answer);
  }

  /**
   * The heads of a converted neuron at each position, and how far the logits of the copy are from those of the model with MLPs.
   * @param {Setting & {neuron: string, of: string}} setting
   */
  asHeads(setting) {
    const { model, ids, before, after } = this.runs(setting);
    const { layer, number } = /** @type {import("./names.js").Named} */ (parseName(setting.neuron)).from;
    const { stream, wrote } = after.run.layers[layer];
    const rows = Float64Array.from(stream, (value, i) => wrote.reduce((sum, head) => sum + head[i], value) + (model.layers[layer].b_O?.[i % model.dContent] ?? 0));
    const { value } = neuronReads(model, layer, number, rows, ids.length, 0);
    const theirs = this.ran(setting.of, ids, [], null).logits;
    const difference = before.logits.reduce((most, logit, i) => Math.max(most, Math.abs(logit - theirs[i])), 0);
    return { read: value[setting.at], heads: neuronHeads(model.layers[layer].mlp?.terms ?? [], value[setting.at], value[setting.at]), difference };
  }

  /** The gates from the position to another one. @param {Setting & {source: number}} setting */
  gates(setting) {
    const { model, after } = this.runs(setting);
    return gatesAt(model, after.run, setting.at, setting.source);
  }

  /**
   * Tokens that contain what is looked for: first those that are it, then those that begin with it.
   * @param {{model: string, query: string}} question
   */
  find({ model: name, query }) {
    const { model, reader } = this.held(name);
    const wanted = query.replace(/·/g, " ").toLowerCase();
    const place = (/** @type {string} */ text) => [text === wanted, text.trimStart() === wanted, text.startsWith(wanted), text.trimStart().startsWith(wanted), true].indexOf(true);
    const found = Array.from({ length: model.dVocab }, (_, id) => ({ id, text: reader.show(id) })).filter(({ text }) => text.toLowerCase().includes(wanted));
    found.sort((a, b) => place(a.text.toLowerCase()) - place(b.text.toLowerCase()) || a.text.length - b.text.length || a.id - b.id);
    return { found: found.slice(0, 8), count: found.length };
  }

  /** @param {Setting & {head: string, source: number}} setting */
  score(setting) {
    const { model, after } = this.runs(setting);
    const head = parseCut(setting.head);
    if (!head) throw new Error(`there is no head ${setting.head}`);
    return scoreParts(model, after.run, head.layer, head.head, setting.at, setting.source);
  }

  /**
   * What a head looks for at one token, and what it writes when it attends to another.
   * @param {import("./interface.js").WordsQuestion} question
   */
  words({ model: name, head: called, token, source, via, back }) {
    const { model, reader } = this.held(name);
    const head = parseCut(called);
    if (!head) throw new Error(`there is no head ${called}`);
    const best = (/** @type {Float32Array} */ row) =>
      largest(row, 8).map((id) => ({ id, text: reader.show(id), value: row[id] }));
    const writes = writtenFor(model, head.layer, head.head, source);
    return {
      looksFor: best(lookedFor(model, head.layer, head.head, token, via, back)),
      raises: best(writes),
      lowers: best(writes.map((value) => -value)).map((word) => ({ ...word, value: -word.value })),
    };
  }
}

if (typeof document === "undefined") {
  const bench = /** @type {any} */ (new Bench());
  addEventListener("message", async ({ data: { id, kind, value } }) => {
    try {
      postMessage({ id, value: await bench[kind](value) });
    } catch (error) {
      postMessage({ id, error: error instanceof Error ? error.message : String(error) });
    }
  });
}
