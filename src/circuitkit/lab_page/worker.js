/**
 * The side of the lab that computes: it holds the models and answers one question after the other.
 */
import { Tokenizer } from "./tokenizer.js";
import { buildModel, fromBase64, readTensors } from "./weights.js";
import { forward, logits, softmax } from "./engine.js";
import { parseCut } from "./names.js";
import { largest, logitParts, lookedFor, meansOf, scoreParts, effects, writtenFor } from "./analysis.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./engine.js").Run} Run */
/** @typedef {import("./engine.js").Numbers} Numbers */
/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./interface.js").Setting} Setting */

export class Bench {
  constructor() {
    /** @type {Tokenizer | null} */
    this.tokenizer = null;
    /** @type {number[][]} rows of held-out text, over which means are taken */
    this.rows = [];
    /** @type {Map<string, Model>} */
    this.models = new Map();
    /** @type {Map<string, Numbers[]>} */
    this.means = new Map();
    /** @type {{key: string, run: Run, logits: Float32Array}[]} the last runs, newest first */
    this.recent = [];
  }

  /** @param {{data: string}} given  JSON, which is read here and not on the page's side */
  text({ data: given }) {
    /** @type {{vocab: string[], merges: number[], rows: number[][]}} */
    const data = JSON.parse(given);
    this.tokenizer = new Tokenizer(data);
    this.rows = data.rows;
  }

  /** @param {{name: string, dHead: number, weights: string}} data */
  model({ name, dHead, weights }) {
    if (!this.models.has(name)) this.models.set(name, buildModel(readTensors(fromBase64(weights)), dHead));
  }

  /** All the ids of a text. @param {string} text */
  ids(text) {
    return this.tokenizer?.encode(text);
  }

  /** @param {Setting} setting */
  parse({ model: name, text }) {
    const model = this.models.get(name);
    if (!model || !this.tokenizer) throw new Error(`${name} has not been loaded`);
    const ids = this.tokenizer.encode(text, model.nCtx + 1);
    return { model, tokenizer: this.tokenizer, cropped: ids.length > model.nCtx, ids: ids.slice(0, model.nCtx) };
  }

  /** @param {Setting} setting @param {Model} model */
  meansFor({ model: name, fill }, model) {
    if (fill === "zero" || !model.nLayers) return null;
    let means = this.means.get(name);
    if (!means) this.means.set(name, (means = meansOf(this.rows.map((ids) => forward(model, ids)))));
    return means;
  }

  /** @param {string} name @param {Model} model @param {number[]} ids @param {string[]} cuts @param {Numbers[] | null} means */
  ran(name, model, ids, cuts, means) {
    const key = [name, ids, cuts, cuts.length && means ? "mean" : "zero"].join(" ");
    let recent = this.recent.find((one) => one.key === key);
    if (!recent) {
      const run = forward(model, ids, { cuts, means });
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
    const { model, ids, tokenizer, cropped } = this.parse(setting);
    const means = this.meansFor(setting, model);
    const before = this.ran(setting.model, model, ids, [], null);
    const after = this.ran(setting.model, model, ids, setting.cuts, means);
    return { model, ids, tokenizer, cropped, means, before, after };
  }

  /**
   * @param {Setting & {all?: boolean}} setting
   * @returns {Reply}
   */
  run(setting) {
    const { model, ids, tokenizer, cropped, before, after } = this.runs(setting);
    const n = ids.length;
    const at = setting.at < 0 || setting.at >= n ? n - 1 : setting.at;
    const row = (/** @type {Float32Array} */ all, /** @type {number} */ i) =>
      softmax(all.subarray(i * model.dVocab, (i + 1) * model.dVocab));
    const [was, is] = [row(before.logits, at), row(after.logits, at)];
    const guess = (/** @type {number} */ id) => ({ id, text: tokenizer.show(id), before: was[id], after: is[id] });
    const first = largest(was, 5);
    const chosen = setting.answer >= 0 && setting.answer < model.dVocab ? setting.answer : first[0];
    const listed = [...new Set([...first, ...largest(is, 5)])];
    const predicted = ids.slice(1).map((id, i) => ({ before: row(before.logits, i)[id], after: row(after.logits, i)[id] }));
    return {
      tokens: ids.map((id) => ({ id, text: tokenizer.show(id) })),
      cropped,
      at,
      nLayers: model.nLayers,
      nHeads: model.nHeads,
      patterns: after.run.layers.map(({ pattern }) => pattern),
      answer: guess(chosen),
      guesses: listed.map(guess).sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after)),
      predicted,
      parts: {
        before: logitParts(model, before.run, at, chosen),
        after: logitParts(model, after.run, at, chosen),
      },
      ...(setting.all ? { logits: after.logits } : {}),
    };
  }

  /** The effect of each head and wire, in the run with the cuts. @param {Setting} setting */
  effects(setting) {
    const { model, means, after } = this.runs(setting);
    return effects(model, after.run, setting.at, setting.answer, means);
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
  words({ model: name, head: called, token, source, via }) {
    const model = this.models.get(name);
    const head = parseCut(called);
    if (!model || !head || !this.tokenizer) throw new Error(`${name} has not been loaded`);
    const { tokenizer } = this;
    const best = (/** @type {Float32Array} */ row) =>
      largest(row, 8).map((id) => ({ id, text: tokenizer.show(id), value: row[id] }));
    const writes = writtenFor(model, head.layer, head.head, source);
    return {
      looksFor: best(lookedFor(model, head.layer, head.head, token, via)),
      raises: best(writes),
      lowers: best(writes.map((value) => -value)).map((word) => ({ ...word, value: -word.value })),
    };
  }
}

if (typeof document === "undefined") {
  const bench = /** @type {any} */ (new Bench());
  addEventListener("message", ({ data: { id, kind, value } }) => {
    try {
      postMessage({ id, value: bench[kind](value) });
    } catch (error) {
      postMessage({ id, error: String(error) });
    }
  });
}
