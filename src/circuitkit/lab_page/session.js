/**
 * What the reader has set, what the engine has replied, and the steps between them. Nothing here touches the page.
 */
import { allNames, parseCut } from "./names.js";
import { PRESETS } from "./presets.js";
import { fitting, fromPreset, shapeOf, toAddress } from "./state.js";
import { spoken, thousands } from "./dom.js";

/** @typedef {import("./interface.js").Engine} Engine */
/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./interface.js").Screen} Screen */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Steps} Steps */

/** The name of the model that a reader brings. */
export const OWN = "own";

export const MODELS = {
  "two-layer": "two layers of four heads",
  "one-layer": "one layer of four heads",
  "zero-layer": "no layers",
  "two-layer-mlp": "two layers of heads and MLPs",
  "two-layer-mlp-1": "the same MLPs, each neuron as one head",
  "two-layer-mlp-5": "the same MLPs, each neuron as five heads",
  gated: "a gated block of twelve heads",
};

/** The text of a model that has tokens of its own. */
const GATED_TEXT = "start C2 A C3 C5 start B1";

/** Until the browser has done what waits: a drawing is made in parts, so that the page answers in between. */
export const rest = () => new Promise((done) => setTimeout(done));

export class Session {
  /** @param {Engine} engine @param {State} state @param {Steps} steps */
  constructor(engine, state, steps) {
    this.engine = engine;
    this.state = state;
    this.steps = steps;
    /** @type {Screen | null} what draws the replies */
    this.screen = null;
    /** @type {{state: State, said: string | null}[]} the states before this one, each with the message about the step after it */
    this.past = [];
    /** @type {{state: State, said: string | null}[]} the states that were undone, the last one at the end */
    this.future = [];
    /** @type {string | null} */
    this.unsaid = null; // of a change that a newer one has overtaken
    /** @type {State | null} */
    this.replied = null; // the state that the reply is of
    /** @type {Reply | null} */
    this.reply = null;
    /** @type {Record<string, number>} */
    this.effects = {};
    /** @type {import("./interface.js").OwnModel | null} the reader's own model */
    this.own = null;
    this.asked = 0; // how often the engine was asked
    this.source = -1; // the token that the panels are about
    this.query = ""; // in the search for neurons
    this.neuron = ""; // the one whose wires are listed
    /** @type {Record<string, number>} */
    this.wires = {}; // the effects of wires of neurons, as far as they are measured
    /** @type {{key: string, names: string[], fired: number[], found: Record<string, number>}} what is known of the neurons in a state */
    this.neurons = { key: "", names: [], fired: [], found: {} };
    /** @type {string | null} */
    this.via = null; // the head whose output the words are about; null: the one that contributes most to the keys
    this.typing = false;
    this.field = "text"; // in which the reader types
    this.walking = false;
    this.from = ""; // the id of the preset that the reader has begun with
    this.waiting = 0; // the timers of typing and sliding
    this.sliding = 0;
  }

  // --- what the reader does ----------------------------------------------------------------------------------------

  /** @param {Partial<State>} some @param {string | null} said  the beginning of the message; null: it stays @param {boolean} [joined]  whether it belongs to the step before */
  change(some, said, joined = false) {
    const next = fitting({ ...this.state, ...some }, this.shape(some.model));
    if (toAddress(next) === toAddress(this.state)) return this.update(said);
    if (!joined) {
      this.past.push({ state: this.state, said });
    } else if (toAddress(next) === this.before()) {
      // What was typed has been taken back in the text box, so there is nothing left to undo.
      this.past.pop();
      this.typing = this.walking = false;
    }
    this.future = [];
    this.state = next;
    return this.update(said);
  }

  /** @param {import("./presets.js").Preset} preset */
  begin(preset) {
    this.hold();
    this.from = preset.id;
    return this.change(fromPreset(preset), preset.name);
  }

  /** Drop a change that typing or sliding has begun and that is not computed yet. */
  hold() {
    clearTimeout(this.waiting);
    clearTimeout(this.sliding);
    this.typing = false;
  }

  /** @param {string} text @param {"text" | "other"} [which] */
  typed(text, which = "text") {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      // A stretch of typing is one step for undo.
      const joined = this.typing && this.field === which;
      this.typing = true;
      this.field = which;
      if (which === "other") this.change({ other: text.toWellFormed() }, "New second text", joined);
      else this.change({ text: text.toWellFormed(), at: -1 }, "New text", joined);
    }, 120);
  }

  /** The layers and heads of a model. @param {string} [model] */
  shape(model = this.state.model) {
    return (model === OWN && this.own) || shapeOf(model);
  }

  /** @param {string} model */
  chooseModel(model) {
    this.hold();
    if (model === OWN && this.own) return this.begins(this.own);
    const steps = this.steps[model];
    // Their texts consist of other tokens.
    const apart = [this.state.model, model].some((one) => one === OWN || one === "gated") && model !== this.state.model;
    const fresh = apart ? { text: model === "gated" ? GATED_TEXT : PRESETS[0].text, other: undefined, at: -1 } : {};
    return this.change({ model, ...fresh, step: steps[steps.length - 1], cuts: [], answer: -1 }, `The model with ${MODELS[/** @type {"two-layer"} */ (model)]}`);
  }

  /** The reader's own model, with its first row. @param {import("./interface.js").OwnModel} own */
  begins(own) {
    this.hold();
    this.own = own;
    this.steps[OWN] = [0];
    return this.change({ model: OWN, step: 0, text: own.rows[0].text, cuts: [], fill: "zero", other: undefined, at: -1, answer: -1, head: "" }, own.title);
  }

  /** Open a file that `ck.lab` has written. @param {string} text  base64 of its weights */
  async openFile(text) {
    return this.begins(await this.engine.openFile(text));
  }

  /** The training step at a place of the slider. @param {number} place */
  stepAt(place) {
    return this.steps[this.state.model][place];
  }

  /** @param {number} step  of training */
  slide(step) {
    clearTimeout(this.sliding);
    this.sliding = setTimeout(() => {
      const { state, reply, replied } = this; // the reply may be of a text that is no longer there
      const answer = reply && replied?.text === state.text && replied.model === state.model ? reply.answer.id : state.answer;
      this.change({ step, answer }, `Training step ${thousands(step)}`);
    }, 80);
  }

  /** Switch a head off or cut a wire, or undo that. @param {string} name */
  toggle(name) {
    const out = this.state.cuts.includes(name);
    const cuts = out ? this.state.cuts.filter((cut) => cut !== name) : [...this.state.cuts, name];
    const what = spoken(name);
    if (this.state.fill === "patch") return this.change({ cuts }, `You ${out ? "took back the patch of" : "patched"} ${what}`);
    const said = name.includes(">") ? `You ${out ? "reconnected" : "cut"} ${what}` : `${name} is ${out ? "on again" : "off"}`;
    return this.change({ cuts }, said);
  }

  /** Force the gate of a head open or shut, or leave it as its weights make it. @param {string} head @param {string} how */
  gate(head, how) {
    const cuts = this.state.cuts.filter((name) => ![`${head} open`, `${head} shut`].includes(name));
    return this.change({ cuts: how ? [...cuts, `${head} ${how}`] : cuts }, `The gate of ${head} is ${how ? `forced ${how}` : "as trained"}`);
  }

  /**
   * The neurons with their effects, in parts; each part is shown as soon as it is measured.
   * @param {number} asked @param {() => boolean} show  says whether to go on
   */
  async measureNeurons(asked, show) {
    const reply = /** @type {Reply} */ (this.reply);
    const setting = { ...this.setting(), at: reply.at, answer: reply.answer.id };
    const key = JSON.stringify(setting);
    if (this.neurons.key !== key) {
      const { names, fired } = await this.engine.neurons(setting);
      if (asked !== this.asked) return;
      this.neurons = { key, names, fired, found: {} };
    }
    const { names, found } = this.neurons;
    let from = Object.keys(found).length;
    while (show() && asked === this.asked && from < names.length) {
      const more = await this.engine.measure({ ...setting, names, from, time: 300 });
      Object.assign(found, more.found);
      from = more.next || names.length;
    }
  }

  /** The state before the last step, as an address. */
  before() {
    const before = this.past[this.past.length - 1];
    return before && toAddress(before.state);
  }

  /** Begin with a second text, or leave it. */
  second() {
    this.hold();
    if (this.state.other !== undefined) return this.change({ other: undefined, fill: "zero", cuts: [] }, "One text");
    const preset = this.preset();
    return this.change({ other: preset?.other ?? this.state.text, fill: "patch", cuts: [] }, "A second text, from which heads and wires are patched");
  }

  swap() {
    this.hold();
    const { text, other = "" } = this.state;
    return this.change({ text: other, other: text }, "The texts are swapped");
  }

  back() {
    this.hold();
    while (this.before() === toAddress(this.state)) this.past.pop(); // a step that would change nothing
    this.step(this.past, this.future, "Undone");
  }

  again() {
    this.hold();
    this.step(this.future, this.past, "Done again");
  }

  /** @param {{state: State, said: string | null}[]} from @param {{state: State, said: string | null}[]} to @param {string} done */
  step(from, to, done) {
    const one = from.pop();
    if (!one) return;
    to.push({ state: this.state, said: one.said });
    this.state = one.state;
    this.update(one.said ? `${done} (${one.said})` : done);
  }

  /** Choose the token whose next token is predicted. @param {number} at */
  choose(at) {
    const joined = this.walking;
    this.walking = true;
    this.source = -1;
    this.change({ at, answer: -1 }, "", joined);
  }

  // --- what the engine is asked ------------------------------------------------------------------------------------

  /** The name of the file with the weights of a state. @param {State} state */
  file({ model, step }) {
    const steps = this.steps[model];
    return step === steps[steps.length - 1] ? model : `${model}-step${String(step).padStart(5, "0")}`;
  }

  setting() {
    const { text, cuts, fill, at, answer, other } = this.state;
    return { model: this.file(this.state), text, cuts, fill, at, answer, other };
  }

  /** Ask for the state and have it drawn; what is overtaken by a newer state is dropped. @param {string | null} said */
  async update(said) {
    const screen = /** @type {Screen} */ (this.screen);
    const asked = ++this.asked;
    const { replied } = this;
    // What is said about a change compares two replies that differ in it alone, and not in the training step as well.
    const before = replied && replied.step !== this.state.step && (replied.cuts.length || this.state.cuts.length) ? null : this.reply;
    if (said !== "New text" && said !== "New second text") this.typing = false;
    if (said) this.walking = false;
    this.unsaid = said = said ?? this.unsaid;
    const { state } = this;
    const file = this.file(state);
    if (!this.engine.has(file)) screen.say("Loading the weights …");
    else if (said !== null) setTimeout(() => asked === this.asked && this.replied !== state && screen.say("Computing …"), 300);
    screen.begin();
    try {
      await this.engine.bring(file);
      if (asked !== this.asked) return;
      const setting = this.setting();
      const reply = await this.engine.run(setting);
      if (asked !== this.asked) return;
      this.receive(reply, state);
      const measured = { ...setting, at: reply.at, answer: reply.answer.id };
      const coming = this.engine.measure({ ...measured, from: 0, time: 1500 });
      coming.catch(() => {}); // awaited below, unless a newer state has overtaken this one
      let left = 0;
      const effects = async () => {
        ({ found: this.effects, next: left } = await coming);
      };
      for (const part of screen.drawing(reply, said, before, effects)) {
        await part();
        await rest();
        if (asked !== this.asked) return;
      }
      screen.end(asked);
      this.measureMore(asked, measured, left).catch(() => {}); // in a large model
    } catch (error) {
      if (asked !== this.asked) return;
      screen.say(`This did not work: ${error instanceof Error ? error.message : error}`);
      screen.end(asked);
    }
  }

  /**
   * The wires that are not measured yet, bit by bit, while the reader looks at the others.
   * @param {number} asked @param {import("./interface.js").Setting} setting @param {number} from
   */
  async measureMore(asked, setting, from) {
    while (from) {
      const more = await this.engine.measure({ ...setting, from, time: 500 });
      if (asked !== this.asked) return;
      Object.assign(this.effects, more.found);
      from = more.next;
      this.screen?.more(from);
    }
  }

  /** @param {Reply} reply @param {State} state */
  receive(reply, state) {
    const ids = (/** @type {Reply | null} */ of) => of?.tokens.map(({ id }) => id).join(" ");
    if (ids(reply) !== ids(this.reply)) this.source = -1;
    this.reply = reply;
    this.replied = state;
  }

  /** The preset that the text and the model are of; where several have them, the one that the reader has begun with. @returns {import("./presets.js").Preset | undefined} */
  preset() {
    const { state } = this;
    const alike = PRESETS.filter(({ text, model }) => text === state.text && model === state.model);
    return alike.find(({ id }) => id === this.from) ?? alike[0];
  }

  /** The wire that carries the scissors: the preset's, until the reader has cut something. */
  marked() {
    return (!this.state.cuts.length && this.state.fill !== "patch" && this.preset()?.cut) || "";
  }

  /** The head whose output is the key of the chosen head: as the reader chose, else the strongest wire into its keys; "" is the token itself. */
  writer() {
    const { head } = this.state;
    if (this.via !== null && this.writers().includes(this.via)) return this.via;
    const effect = (/** @type {string} */ from) => Math.abs(this.effects[`${from}->${head}.K`] ?? 0);
    return this.writers().reduce((best, from) => (effect(from) >= 1 && effect(from) > effect(best) ? from : best), "");
  }

  /** The heads that write before the chosen one reads. */
  writers() {
    const layer = parseCut(this.state.head)?.layer ?? 0;
    return allNames(layer, this.shape().nHeads).filter((name) => !name.includes(">"));
  }
}
