/**
 * The side of "Born in your tab" that trains: it reports every saved step with its measures, its weights, and what it does on one row.
 */
import { forward, logits, softmax } from "./engine.js";
import { copyOf, Trainer } from "./training.js";
import { EVERY, STEPS } from "./training_rows.js";

/** @typedef {import("./weights.js").Model} Model */
/** @typedef {import("./training.js").Measures} Measures */
/** @typedef {import("./training_rows.js").Recipe} Recipe */
/**
 * @typedef {object} Saved  one saved step
 * @property {number} step
 * @property {Measures} measures  on held-out rows
 * @property {Model} model
 * @property {Float32Array[]} patterns  of each layer on the row that is shown, [n, n]
 * @property {number[]} chances  of each token of that row: the probability that the model gave it
 */

class Cradle {
  constructor() {
    /** @type {Trainer | null} */
    this.trainer = null;
    /** @type {number[]} */
    this.ids = [];
    this.going = 0; // the number of the loop that may go on
    this.told = -1; // the last step that was reported
  }

  /** @param {{recipe: Recipe, ids: number[]}} given  the ids are those of the row that is shown */
  start({ recipe, ids }) {
    this.trainer = new Trainer(recipe);
    this.ids = ids;
    this.told = -1;
    this.go();
  }

  /** Stop; what is saved has been reported before the answer. */
  pause() {
    this.going++;
    postMessage("paused");
  }

  async go() {
    const { trainer } = this;
    const mine = ++this.going;
    while (trainer && mine === this.going) {
      if (trainer.done % EVERY === 0 && trainer.done > this.told) {
        this.told = trainer.done;
        postMessage(this.saved(trainer));
        // Until the messages that wait have been read: the reader may have paused.
        await new Promise((done) => setTimeout(done));
        if (trainer.done === STEPS) return;
        continue;
      }
      trainer.step();
    }
  }

  /** @param {Trainer} trainer @returns {Saved} */
  saved(trainer) {
    const { model } = trainer;
    const run = forward(model, this.ids);
    const all = logits(model, run);
    const chance = (/** @type {number} */ i) => softmax(all.subarray((i - 1) * model.dVocab, i * model.dVocab))[this.ids[i]];
    return {
      step: trainer.done,
      measures: trainer.measure(),
      model: copyOf(model),
      patterns: run.layers.map(({ pattern }) => pattern),
      chances: this.ids.map((_, i) => (i ? chance(i) : 0)),
    };
  }
}

if (typeof document === "undefined") {
  const cradle = new Cradle();
  addEventListener("message", ({ data: { kind, value } }) => cradle[/** @type {"start"} */ (kind)](value));
}
