/**
 * The engine of a page: it brings what is needed, one file after the other, and hands questions to a worker.
 */

/** @typedef {import("./interface.js").Engine} Engine */
/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./interface.js").Score} Score */
/** @typedef {import("./interface.js").Setting} Setting */
/** @typedef {import("./interface.js").Words} Words */
/** @typedef {import("./interface.js").WordsQuestion} WordsQuestion */

/** @typedef {((kind: string, value: unknown) => Promise<any>) & {terminate: () => void}} Computer  what answers: a worker, or the page */

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
    /** @type {Promise<Computer> | null} */
    this.worker = null;
    /** @type {Promise<unknown> | null} */
    this.reader = null;
    this.end = () => this.rest();
    this.alone = false; // whether the page computes, because there is no worker
  }

  /**
   * The worker, made from a function of a classic script: a page from a file may not name a file of its own for it. Where the browser
   * allows no worker, the page itself computes.
   * @returns {Promise<Computer>}
   */
  async start() {
    window.circuitLab.only(this.end);
    const engine = await window.circuitLab.need("engine");
    const address = URL.createObjectURL(new Blob([`(${engine})()`], { type: "text/javascript" }));
    try {
      const worker = new Worker(address);
      worker.addEventListener("message", ({ data: { id, value, error } }) => {
        const asked = this.open.get(id);
        this.open.delete(id);
        if (error) asked?.reject(new Error(error));
        else asked?.resolve(value);
      });
      const send = (/** @type {string} */ kind, /** @type {unknown} */ value) => {
        const id = ++this.count;
        return new Promise((resolve, reject) => {
          this.open.set(id, { resolve, reject });
          worker.postMessage({ id, kind, value });
        });
      };
      await Promise.race([send("ready", null), new Promise((_, reject) => worker.addEventListener("error", () => reject(new Error("no worker"))))]);
      return Object.assign(send, { terminate: () => worker.terminate() });
    } catch {
      this.alone = true;
      const script = document.createElement("script");
      script.textContent = `circuitLab.deliver("bench", (${engine})());`;
      document.head.append(script);
      const bench = new (await window.circuitLab.need("bench"))();
      const ask = async (/** @type {string} */ kind, /** @type {unknown} */ value) => {
        await new Promise((done) => setTimeout(done));
        return bench[kind](value);
      };
      return Object.assign(ask, { terminate: () => {} });
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  /** @param {string} kind @param {unknown} value @returns {Promise<any>} */
  async ask(kind, value) {
    this.worker ??= this.start();
    this.worker.catch(() => (this.worker = null));
    return (await this.worker)(kind, value);
  }

  /** The tokenizer of the book, once. */
  text() {
    this.reader ??= this.need("text").then((text) => this.ask("text", text));
    this.reader.catch(() => (this.reader = null));
    return this.reader;
  }

  /** Whether a model is here already. @param {string} name */
  has(name) {
    return this.brought.has(name);
  }

  /** Bring a model, once. @param {string} name @returns {Promise<unknown>} */
  bring(name) {
    /** @type {Promise<unknown> | undefined} */
    let model = this.brought.get(name);
    if (!model) {
      const copied = /^(two-layer-mlp)-(\d)$/.exec(name); // it has the same weights
      model = copied ? this.bring(copied[1]).then(() => this.ask("copy", { name, of: copied[1], heads: Number(copied[2]) })) : this.fetch(name);
      this.brought.set(name, model);
      model.catch(() => this.brought.delete(name));
    }
    return model;
  }

  /** @param {string} name @returns {Promise<unknown>} */
  fetch(name) {
    const data = this.need(`models/${name}`);
    const model = this.text().then(async () => this.ask("model", await data));
    model.finally(() => window.circuitLab.forget(`models/${name}`)).catch(() => {});
    return model;
  }

  /** @param {Setting} setting @returns {Promise<{names: string[], fired: number[]}>} */
  neurons(setting) {
    return this.about("neurons", setting);
  }

  /** @param {Setting & {neuron: string, of: string}} setting @returns {Promise<import("./interface.js").AsHeads>} */
  asHeads(setting) {
    return this.about("asHeads", setting);
  }

  /** @param {Setting & {source: number}} setting @returns {Promise<import("./interface.js").Gate[]>} */
  gates(setting) {
    return this.about("gates", setting);
  }

  /** End the worker, so that another part of the page can have its own. The next question starts it again. */
  rest() {
    if (this.open.size || this.brought.has("own")) return; // it computes, or nobody can bring its model again
    this.worker?.then(({ terminate }) => terminate(), () => {});
    this.worker = this.reader = null;
    this.brought.clear();
  }

  /** Ask about a model. @param {string} kind @param {{model: string}} question @returns {Promise<any>} */
  async about(kind, question) {
    await this.bring(question.model);
    return this.ask(kind, question);
  }

  /** @param {Setting} setting @returns {Promise<Reply>} */
  run(setting) {
    return this.about("run", setting);
  }

  /** @param {Setting & {from: number, time: number, names?: string[]}} setting */
  measure(setting) {
    return this.about("measure", setting);
  }

  /** @param {string} text @returns {Promise<import("./interface.js").OwnModel>} */
  async openFile(text) {
    const opened = await this.ask("open", { name: "own", weights: text });
    this.brought.set("own", Promise.resolve());
    return { ...opened, alone: this.alone };
  }

  /** @param {{model: string, query: string}} question @returns {Promise<{found: {id: number, text: string}[], count: number}>} */
  find(question) {
    return this.about("find", question);
  }

  /** @param {Setting & {head: string, source: number}} question @returns {Promise<Score>} */
  score(question) {
    return this.about("score", question);
  }

  /** @param {WordsQuestion} question @returns {Promise<Words>} */
  words(question) {
    return this.about("words", question);
  }
}
