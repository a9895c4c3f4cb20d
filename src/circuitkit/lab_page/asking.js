/**
 * The engine of a page: it brings what is needed, one file after the other, and hands questions to a worker.
 */

/** @typedef {import("./interface.js").Engine} Engine */
/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./interface.js").Score} Score */
/** @typedef {import("./interface.js").Setting} Setting */
/** @typedef {import("./interface.js").Words} Words */
/** @typedef {import("./interface.js").WordsQuestion} WordsQuestion */

/** @implements {Engine} */
export class WorkerEngine {
  /** @param {(name: string) => Promise<any>} [need]  brings the tokenizer ("text") and the weights ("models/NAME") */
  constructor(need = (name) => window.circuitLab.need(name)) {
    this.need = need;
    /** @type {Map<number, {resolve: (value: any) => void, reject: (reason: Error) => void}>} */
    this.open = new Map();
    this.count = 0;
    /** @type {Map<string, Promise<unknown>>} */
    this.brought = new Map();
    /** @type {Promise<Worker> | null} */
    this.worker = null;
  }

  /** The worker, made from a function of a classic script: a page from a file may not name a file of its own for it. */
  async start() {
    const [engine, text] = await Promise.all([window.circuitLab.need("engine"), this.need("text")]);
    const address = URL.createObjectURL(new Blob([`(${engine})()`], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.addEventListener("message", ({ data: { id, value, error } }) => {
      const asked = this.open.get(id);
      this.open.delete(id);
      if (error) asked?.reject(new Error(error));
      else asked?.resolve(value);
    });
    const ready = this.send(worker, "text", text);
    await ready;
    URL.revokeObjectURL(address);
    return worker;
  }

  /** @param {Worker} worker @param {string} kind @param {unknown} value @returns {Promise<any>} */
  send(worker, kind, value) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.open.set(id, { resolve, reject });
      worker.postMessage({ id, kind, value });
    });
  }

  /** @param {string} kind @param {unknown} value @returns {Promise<any>} */
  async ask(kind, value) {
    this.worker ??= this.start();
    this.worker.catch(() => (this.worker = null));
    return this.send(await this.worker, kind, value);
  }

  /** Whether a model is here already. @param {string} name */
  has(name) {
    return this.brought.has(name);
  }

  /** Bring a model, once. @param {string} name */
  bring(name) {
    let model = this.brought.get(name);
    if (!model) {
      model = this.need(`models/${name}`).then((data) => this.ask("model", data));
      model.finally(() => window.circuitLab.forget(`models/${name}`)).catch(() => {});
      this.brought.set(name, model);
      model.catch(() => this.brought.delete(name));
    }
    return model;
  }

  /** @param {Setting} setting @returns {Promise<Reply>} */
  run(setting) {
    return this.ask("run", setting);
  }

  /** @param {Setting} setting @returns {Promise<Record<string, number>>} */
  effects(setting) {
    return this.ask("effects", setting);
  }

  /** @param {Setting & {head: string, source: number}} question @returns {Promise<Score>} */
  score(question) {
    return this.ask("score", question);
  }

  /** @param {WordsQuestion} question @returns {Promise<Words>} */
  words(question) {
    return this.ask("words", question);
  }
}
