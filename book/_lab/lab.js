/**
 * The lab on a page: one state, drawn again after every change.
 */
import { Client } from "./client.js";
import { h, percent, s, signed, spoken, thousands, visible } from "./dom.js";
import { arcs, mark, thumbnail, tone, wires } from "./draw.js";
import { headName, INPUTS, parseCut } from "./names.js";
import { guessTable, partsPanel, pythonPanel, scorePanel, word, wordsPanel } from "./panels.js";
import { PRESETS } from "./presets.js";
import { pythonFor } from "./python.js";
import { fitting, fromAddress, fromPreset, left, LONGEST, TABS, toAddress } from "./state.js";

/** @typedef {import("./worker.js").Reply} Reply */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./state.js").Steps} Steps */

const MODELS = { "two-layer": "two layers of four heads", "one-layer": "one layer of four heads", "zero-layer": "no layers" };
const TAB_NAMES = { parts: "Logit attribution", score: "Attention score", words: "Words of a head", python: "Python" };
const client = new Client();
let count = 0;

/** Until the browser has done what waits: a drawing is made in parts, so that the page answers in between. */
const rest = () => new Promise((done) => setTimeout(done));

class Lab {
  /** @param {HTMLElement} element @param {State} state @param {Steps} steps */
  constructor(element, state, steps) {
    this.element = element;
    this.state = state;
    this.steps = steps;
    /** @type {State[]} */
    this.past = [];
    /** @type {(string | null)[]} */
    this.did = []; // the message about the step after each of them
    /** @type {string | null} */
    this.unsaid = null; // of a change that a newer one has overtaken
    /** @type {State | null} */
    this.replied = null; // the state that the reply is of
    /** @type {Reply | null} */
    this.reply = null;
    /** @type {Reply | null} */
    this.ready = null; // the reply whose tokens and heads are on the page
    /** @type {Record<string, number>} */
    this.effects = {};
    this.asked = 0;
    this.source = -1;
    /** @type {number | null} */
    this.via = null; // the head whose output the words are about; null: the one that contributes most to the keys
    this.drawn = "";
    this.size = "";
    /** @type {Map<string, HTMLElement>} */
    this.cards = new Map();
    this.typing = false;
    this.walking = false;
    this.focusChip = false;
    this.waiting = 0;
    this.sliding = 0;
    const number = ++count;
    const id = (/** @type {string} */ name) => `cl-${number}-${name}`;
    this.id = id;
    this.presets = PRESETS.map((preset) =>
      h("button", { type: "button", class: "cl-preset", "data-preset": preset.id, click: () => this.begin(preset) }, preset.name),
    );
    this.text = /** @type {HTMLTextAreaElement} */ (
      h("textarea", { id: id("text"), rows: 2, maxlength: LONGEST, spellcheck: "false", autocomplete: "off", autocapitalize: "off", input: () => this.typed() })
    );
    this.model = /** @type {HTMLSelectElement} */ (
      h("select", { id: id("model"), change: () => this.chooseModel(this.model.value) }, Object.entries(MODELS).map(([value, name]) => h("option", { value }, name)))
    );
    this.slider = /** @type {HTMLInputElement} */ (
      h("input", { type: "range", id: id("step"), min: 0, step: 1, input: () => this.slide(), "aria-describedby": id("learned") })
    );
    this.stepNow = h("output", { for: id("step") });
    this.training = h("div", { class: "cl-training" }, h("label", { for: id("step") }, "Training step"), this.slider, this.stepNow);
    this.hint = h("p", { class: "cl-try" });
    this.above = s("svg", { class: "cl-arcs", "aria-hidden": "true" });
    this.below = s("svg", { class: "cl-arcs", "aria-hidden": "true" });
    this.chips = h("div", { class: "cl-chips", role: "listbox", "aria-label": "Tokens: choose the one whose next token is predicted", "aria-orientation": "horizontal", keydown: (/** @type {KeyboardEvent} */ event) => this.walk(event) });
    this.strip = h("div", { class: "cl-strip" }, h("div", { class: "cl-strip-inside" }, this.above, this.chips, this.below));
    this.strip.addEventListener("scroll", () => this.edges(), { passive: true });
    this.looks = h("p", { class: "cl-looks" });
    this.svg = s("svg", { class: "cl-wires", "aria-hidden": "true" });
    this.top = h("div", { class: "cl-end cl-top" });
    this.bottom = h("div", { class: "cl-end cl-bottom" });
    this.rows = h("div", { class: "cl-rows" });
    this.circuit = h("div", { class: "cl-circuit", tabindex: "-1" }, this.svg, this.top, this.rows, this.bottom);
    this.pointed = h("p", { class: "cl-pointed", "aria-hidden": "true" });
    this.echo = h("p", { class: "cl-echo", "aria-hidden": "true" }); // what is said, where a thumb on the circuit sees it
    const key = (/** @type {string} */ input, /** @type {string} */ name) => [h("b", { class: `cl-key cl-${input}` }, input), ` ${name}`];
    this.legend = h("p", { class: "cl-legend" }, "The colour of a wire is the input that it enters: ", key("Q", "queries, "), key("K", "keys or "), key("V", "values. "), "Its width is how much the logit of the chosen token changes when this wire alone is cut; a dashed wire lowers that logit.");
    this.reading = h("p", { class: "cl-legend" }, "The arcs show attention, and the purple arcs belong to the chosen head. The bar under each token is the probability that the model gave it.");
    this.paper = h("p", { class: "cl-paper" });
    this.wireList = h("div", { class: "cl-wire-list" });
    this.guesses = h("div", { class: "cl-next" });
    this.zero = this.radio(id, "zero", "nothing");
    this.mean = this.radio(id, "mean", "its average output on held-out text");
    this.undo = h("button", { type: "button", class: "cl-button", click: () => this.back() }, "Undo");
    this.restore = h("button", { type: "button", class: "cl-button", click: () => this.change({ cuts: [] }, "Reset") }, "Reset");
    this.share = h("button", { type: "button", class: "cl-button", click: () => this.copyLink() }, "Copy a link");
    this.link = /** @type {HTMLInputElement} */ (h("input", { type: "text", readonly: true, class: "cl-link", hidden: true, "aria-label": "The link to this finding" }));
    this.tabs = TABS.map((tab) =>
      h("button", { type: "button", role: "tab", id: id(`tab-${tab}`), "aria-controls": id("panel"), click: () => this.change({ tab }, null), keydown: (/** @type {KeyboardEvent} */ event) => this.turn(event) }, TAB_NAMES[/** @type {"parts"} */ (tab)]),
    );
    this.panel = h("div", { class: "cl-panel", role: "tabpanel", id: id("panel"), tabindex: "0" });
    this.live = h("p", { class: "cl-status", role: "status", "aria-live": "polite" });
    const presets = h("div", { class: "cl-presets", role: "group", "aria-label": "Start from" }, this.presets);
    const settings = h(
      "div",
      { class: "cl-settings" },
      h("div", { class: "cl-field cl-grow" }, h("label", { for: id("text") }, "Text"), this.text),
      h("div", { class: "cl-field" }, h("label", { for: id("model") }, "Model"), this.model, this.training),
    );
    const fill = h("fieldset", { class: "cl-fill" }, h("legend", {}, "A head that is switched off writes"), this.zero, this.mean);
    const main = h(
      "div",
      { class: "cl-main" },
      h("div", { class: "cl-left" }, this.circuit, this.pointed, this.echo, this.legend),
      h(
        "div",
        { class: "cl-right" },
        this.guesses,
        this.live,
        h("div", { class: "cl-actions" }, this.undo, this.restore, this.share),
        this.link,
        element.dataset.home === undefined && fill,
        this.wireList,
      ),
    );
    const tokens = h("div", { class: "cl-tokens" }, this.strip, this.looks, this.reading);
    const panels = [h("div", { class: "cl-tabs", role: "tablist", "aria-label": "Look closer" }, this.tabs), this.panel];
    // The home page opens with the circuit; what else one can set is folded under it.
    const more = () => h("details", { class: "cl-more" }, h("summary", {}, "Your own text, other models, and what each component contributes"), presets, settings, fill, panels);
    const contents = element.dataset.home === undefined ? [presets, settings, tokens, this.hint, main, ...panels] : [this.hint, main, tokens, more()];
    this.root = h(
      "div",
      { class: "cl-lab", role: "group", "aria-label": "The lab: a model whose heads and wires can be switched off", keydown: (/** @type {KeyboardEvent} */ event) => this.key(event) },
      contents,
      this.paper,
    );
    const watcher = new ResizeObserver(() => {
      const size = `${this.root.clientWidth} ${this.circuit.clientHeight}`;
      if (this.size === size) return;
      this.size = size;
      this.picture();
    });
    watcher.observe(this.root);
    watcher.observe(this.circuit);
  }

  /** @param {(name: string) => string} id @param {"zero" | "mean"} value @param {string} label */
  radio(id, value, label) {
    const input = h("input", { type: "radio", name: id("fill"), value, change: () => this.change({ fill: value }, `A head that is switched off writes ${label}`) });
    return h("label", {}, input, ` ${label}`);
  }

  // --- what the reader does ----------------------------------------------------------------------------------------

  /** @param {Partial<State>} some @param {string | null} said  the beginning of the message; null: it stays @param {boolean} [joined]  whether it belongs to the step before */
  change(some, said, joined = false) {
    const next = fitting({ ...this.state, ...some });
    if (toAddress(next) === toAddress(this.state)) return this.update(said);
    if (!joined) {
      this.past.push(this.state);
      this.did.push(said);
    }
    this.state = next;
    return this.update(said);
  }

  /** @param {import("./presets.js").Preset} preset */
  begin(preset) {
    this.hold();
    return this.change(fromPreset(preset), preset.name);
  }

  /** Drop a change that typing or sliding has begun and that is not computed yet. */
  hold() {
    clearTimeout(this.waiting);
    clearTimeout(this.sliding);
    this.typing = false;
  }

  typed() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      // A stretch of typing is one step for undo.
      const joined = this.typing;
      this.typing = true;
      this.change({ text: this.text.value.toWellFormed(), at: -1 }, "New text", joined);
    }, 120);
  }

  /** @param {string} model */
  chooseModel(model) {
    this.hold();
    const steps = this.steps[model];
    this.change({ model, step: steps[steps.length - 1], cuts: [], answer: -1 }, `The model with ${MODELS[/** @type {"two-layer"} */ (model)]}`);
  }

  slide() {
    const step = this.steps[this.state.model][Number(this.slider.value)];
    this.stepNow.textContent = thousands(step);
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
    const said = name.includes(">") ? `You ${out ? "reconnected" : "cut"} ${what}` : `${name} is ${out ? "on again" : "off"}`;
    this.change({ cuts }, said);
  }

  back() {
    const before = this.past.pop();
    if (!before) return;
    this.hold();
    this.state = before;
    const what = this.did.pop();
    this.update(what ? `Undone (${what})` : "Undone");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const typing = event.target instanceof HTMLTextAreaElement || (event.target instanceof HTMLInputElement && event.target.type === "text");
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !typing) {
      event.preventDefault();
      this.back();
    }
  }

  /** Arrow keys along the tokens. @param {KeyboardEvent} event */
  walk(event) {
    const last = (this.reply?.tokens.length ?? 1) - 1;
    const at = this.reply?.at ?? 0;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(last, to)));
  }

  /** @param {number} at */
  choose(at) {
    const joined = this.walking;
    this.walking = true;
    this.source = -1;
    this.focusChip = true;
    this.change({ at, answer: -1 }, "", joined);
  }

  /** Arrow keys along the tabs. @param {KeyboardEvent} event */
  turn(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const to = (TABS.indexOf(this.state.tab) + step + TABS.length) % TABS.length;
    this.change({ tab: TABS[to] }, null);
    this.tabs[to].focus();
  }

  async copyLink() {
    const page = this.element.dataset.page ?? location.href;
    const address = new URL(toAddress(this.state), new URL(page, location.href)).href;
    await this.copy(address, "The link is copied");
    this.link.value = address;
    this.link.hidden = false;
  }

  /** @param {string} text @param {string} said */
  async copy(text, said) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(said);
    } catch {
      this.say("The browser does not let the page copy; select the text and copy it");
    }
  }

  // --- what the page does ------------------------------------------------------------------------------------------

  /** @param {string} said */
  say(said) {
    this.live.textContent = said;
    this.echo.textContent = said;
  }

  /** The name of the file with the weights of a state. @param {State} state */
  file({ model, step }) {
    const steps = this.steps[model];
    return step === steps[steps.length - 1] ? model : `${model}-step${String(step).padStart(5, "0")}`;
  }

  setting() {
    const { text, cuts, fill, at, answer } = this.state;
    return { model: this.file(this.state), text, cuts, fill, at, answer };
  }

  /** Compute and draw the state; what is overtaken by a newer one is dropped. @param {string | null} said */
  async update(said) {
    const asked = ++this.asked;
    const before = this.reply;
    if (said !== "New text") this.typing = false;
    if (said) this.walking = false;
    this.unsaid = said = said ?? this.unsaid;
    const { state } = this;
    const file = this.file(state);
    if (!client.has(file)) this.say("Loading the weights …");
    else if (said !== null) setTimeout(() => asked === this.asked && this.replied !== state && this.say("Computing …"), 300);
    this.root.setAttribute("aria-busy", "true");
    this.controls();
    try {
      await client.bring(file);
      if (asked !== this.asked) return;
      const setting = this.setting();
      const reply = /** @type {Reply} */ (await client.ask("run", setting));
      if (asked !== this.asked) return;
      this.reply = reply;
      this.replied = state;
      const tokens = reply.tokens.map(({ id }) => id).join(" ");
      if (this.drawn !== tokens) this.source = -1;
      this.drawn = tokens;
      const coming = client.ask("effects", { ...setting, at: reply.at, answer: reply.answer.id });
      coming.catch(() => {}); // awaited below, unless a newer state has overtaken this one
      const parts = [
        () => this.tell(said, before),
        ...this.chipRow(reply),
        ...this.headRows(reply),
        async () => {
          this.ready = reply;
          this.effects = await coming;
        },
        () => this.picture(),
        () => this.list(),
        () => this.open(asked),
      ];
      for (const part of parts) {
        await part();
        await rest();
        if (asked !== this.asked) return;
      }
      if (this.element.dataset.linked !== undefined && this.past.length) this.address();
    } catch (error) {
      if (asked === this.asked) this.say(`This did not work: ${error instanceof Error ? error.message : error}`);
    }
    if (asked === this.asked) {
      this.root.removeAttribute("aria-busy");
      this.root.dataset.drawn = String(asked);
    }
  }

  /** The state goes into the address, so that the page itself can be linked. */
  address() {
    try {
      history.replaceState(null, "", toAddress(this.state));
    } catch {
      /* a page opened from a file may not change its address */
    }
  }

  /** The preset that the text and the model are of. */
  preset() {
    const { state } = this;
    return PRESETS.find(({ text, model }) => text === state.text && model === state.model);
  }

  /** The wire that carries the scissors: the preset's, until the reader has cut something. */
  marked() {
    return (!this.state.cuts.length && this.preset()?.cut) || "";
  }

  /** What to do next. @param {import("./presets.js").Preset} preset */
  task(preset) {
    if (preset.cut && this.state.cuts.includes(preset.cut)) return [preset.then];
    return this.marked() ? [mark(), " ", h("b", {}, preset.try)] : [preset.try];
  }

  /** What shows the state itself. */
  controls() {
    const { state } = this;
    const preset = this.preset();
    this.presets.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.preset === preset?.id)));
    this.hint.replaceChildren(...(preset ? this.task(preset) : []));
    if (document.activeElement !== this.text || !this.typing) this.text.value = state.text;
    this.model.value = state.model;
    const steps = this.steps[state.model];
    this.training.hidden = steps.length < 2;
    this.slider.max = String(steps.length - 1);
    this.slider.value = String(steps.indexOf(state.step));
    this.stepNow.textContent = thousands(state.step);
    this.slider.setAttribute("aria-valuetext", `step ${state.step}`);
    for (const label of [this.zero, this.mean]) {
      const input = /** @type {HTMLInputElement} */ (label.firstChild);
      input.checked = input.value === state.fill;
    }
    this.undo.setAttribute("aria-disabled", String(!this.past.length));
    this.restore.setAttribute("aria-disabled", String(!state.cuts.length));
    this.link.hidden = true;
    this.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(TABS[i] === state.tab));
      tab.tabIndex = TABS[i] === state.tab ? 0 : -1;
    });
    this.panel.setAttribute("aria-labelledby", this.id(`tab-${state.tab}`));
  }

  /** The next tokens, and a sentence about what has changed. @param {string | null} said @param {Reply | null} before */
  tell(said, before) {
    const reply = /** @type {Reply} */ (this.reply);
    const changed = this.state.cuts.length > 0;
    this.keepFocus(this.guesses, () => this.guesses.replaceChildren(guessTable(reply, changed, (answer) => this.change({ answer }, "Chosen token"))));
    const { answer } = reply;
    const called = (/** @type {string} */ text) => (/[\p{L}\p{N}]/u.test(text) ? visible(text) : `“${visible(text)}”`);
    const name = called(answer.text);
    // Another text or place is another question, not a change.
    const same = before?.at === reply.at && before.tokens.map(({ id }) => id).join() === reply.tokens.map(({ id }) => id).join() ? before : null;
    const was = same?.answer.id === answer.id ? same.answer.after : undefined;
    const top = (/** @type {Reply} */ of) => of.guesses.reduce((best, guess) => (guess.after > best.after ? guess : best));
    const first = top(reply);
    const changes = was === undefined ? "" : percent(was) === percent(answer.after) ? "stays at" : answer.after < was ? "falls" : "rises";
    const move = !changes ? `the probability of ${name} is ${percent(answer.after)}` : changes === "stays at" ? `${name} stays at ${percent(answer.after)}` : `${name} ${changes} from ${percent(was ?? 0)} to ${percent(answer.after)}`;
    const lead = first.id === answer.id ? "" : `, and the most probable token is ${same && top(same).id !== first.id ? "now " : ""}${called(first.text)} with ${percent(first.after)}`;
    const cropped = reply.cropped ? ` The model reads only the first ${reply.tokens.length} tokens.` : "";
    const byte = reply.tokens.find(({ text }) => /^<[0-9A-F]{2}>$/.test(text));
    const bytes = byte ? ` The model has no token for one of the characters and reads its bytes, such as ${byte.text}.` : "";
    const empty = reply.tokens.length < 2 ? " The text is empty, so the model reads only its start token." : "";
    const token = said ? "" : `Position ${reply.at}, ${visible(reply.tokens[reply.at].text)}. `;
    if (said !== null) this.say(`${said ? `${said}: ` : token}${move}${lead}.${cropped}${bytes}${empty}`);
    this.unsaid = null;
    const { state } = this;
    const guesses = reply.guesses.slice(0, 5).map((guess) => `${called(guess.text)} ${percent(guess.after)}`).join(", ");
    this.paper.textContent =
      `The figure shows the circuit at the start. On this page, the model was ${state.model} at step ${thousands(state.step)}, and the text was “${state.text}”` +
      `${state.cuts.length ? `, without ${state.cuts.join(", ")}` : ""}. At position ${reply.at}, ${visible(reply.tokens[reply.at].text)}, the model predicts: ${guesses}.`;
    this.legend.hidden = reply.nLayers < 2;
    this.reading.hidden = reply.nLayers < 1;
    this.top.replaceChildren("next: ", word(first.text), " ", h("b", {}, percent(first.after)));
    const earlier = reply.tokens.slice(1, reply.at).map(({ text }) => text).join("").replace(/\s+/g, " ");
    const tail = earlier.length > 26 ? `… ${earlier.slice(-26).replace(/^\S*\s/, "")}` : earlier;
    this.bottom.replaceChildren(`${tail} `, word(reply.tokens[reply.at].text));
    this.looked(reply);
  }

  /** Where the chosen head looks, in words. @param {Reply} reply */
  looked(reply) {
    const head = parseCut(this.state.head);
    if (!head) {
      this.looks.textContent = "A model without layers has no attention: its prediction depends on the last token alone.";
      return;
    }
    const row = this.row(reply, head.layer, head.head);
    const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a]);
    if (this.source < 0 || this.source > reply.at) {
      // Attention to the start token means little, so the panel opens with the largest weight elsewhere.
      const besides = order.find((i) => i > 0);
      this.source = besides !== undefined && row[besides] > 0.1 ? besides : order[0];
    }
    const seen = order.filter((i) => row[i] >= 0.05).slice(0, 4);
    const out = this.state.cuts.includes(this.state.head) ? " (switched off)" : "";
    this.looks.replaceChildren(
      `${this.state.head}${out} attends from `, word(reply.tokens[reply.at].text), " to ",
      ...seen.flatMap((i, k) => [k ? ", " : "", word(reply.tokens[i].text), ` ${percent(row[i])}`]), ".",
    );
  }

  /** @param {Reply} reply @param {number} layer @param {number} head */
  row({ patterns, at, tokens: { length: n } }, layer, head) {
    return patterns[layer].subarray((head * n + at) * n, (head * n + at) * n + at + 1);
  }

  /** The tokens, in parts: first the new ones, then their positions. @param {Reply} reply */
  chipRow({ tokens, at, predicted }) {
    const { chips, strip } = this;
    const some = 24;
    const draw = (/** @type {number} */ from) => () => {
      for (let i = from; i < Math.min(from + some, tokens.length); i++) {
        const chip = /** @type {HTMLElement} */ (chips.children[i] ?? this.chip(i));
        const [text, p] = [visible(tokens[i].text), i ? predicted[i - 1].after : 0];
        const shown = /** @type {HTMLElement} */ (chip.firstChild);
        if (shown.textContent !== text) shown.textContent = text;
        chip.setAttribute("aria-selected", String(i === at));
        chip.tabIndex = i === at ? 0 : -1;
        chip.style.setProperty("--p", p.toFixed(3));
        chip.setAttribute("aria-label", `${text}, position ${i}${i ? `, probability ${percent(p)}` : ""}`);
      }
    };
    const show = () => {
      while (chips.children.length > tokens.length) chips.lastChild?.remove();
      const chosen = /** @type {HTMLElement} */ (chips.children[at]);
      const [left, right] = [chosen.offsetLeft, chosen.offsetLeft + chosen.offsetWidth];
      if (left < strip.scrollLeft + 20 || right > strip.scrollLeft + strip.clientWidth - 20) strip.scrollLeft = left - strip.clientWidth / 2;
      if (this.focusChip) chosen.focus({ preventScroll: true });
      this.focusChip = false;
    };
    return [...Array.from({ length: Math.ceil(tokens.length / some) }, (_, part) => draw(part * some)), show];
  }

  /** @param {number} i */
  chip(i) {
    const made = h("div", { class: "cl-chip", role: "option", "data-at": i, click: () => this.choose(i) }, h("bdi"), h("span", { class: "cl-seen", "aria-hidden": "true" }));
    this.chips.append(made);
    return made;
  }

  /** The heads, in parts: all of them, then the pictures of each layer. @param {Reply} reply */
  headRows(reply) {
    const names = reply.patterns.map((_, layer) => Array.from({ length: reply.nHeads }, (__, head) => headName(layer, head)));
    const rows = () => {
      if (names.flat().join() !== [...this.cards.keys()].join()) {
        this.cards = new Map(names.flat().map((name) => [name, this.card(name)]));
        this.rows.replaceChildren(
          ...[...names].reverse().flatMap((row, i) => [
            i ? h("div", { class: "cl-gap", "aria-hidden": "true" }) : null,
            h("div", { class: "cl-row", role: "group", "aria-label": `Layer ${names.length - 1 - i}` }, row.map((name) => /** @type {HTMLElement} */ (this.cards.get(name)))),
          ]).filter((row) => row !== null),
        );
      }
      this.circuit.classList.toggle("cl-two", reply.nLayers === 2);
    };
    return [rows, ...names.map((row) => () => row.forEach((name) => this.show(reply, name)))];
  }

  /** What a head does now. @param {Reply} reply @param {string} name */
  show(reply, name) {
    const card = /** @type {HTMLElement} */ (this.cards.get(name));
    const [layer, head] = [Number(name[1]), Number(name[3])];
    const out = this.state.cuts.includes(name);
    const look = /** @type {HTMLElement} */ (card.children[0]);
    const row = this.row(reply, layer, head);
    const best = row.reduce((top, share, i) => (share > row[top] ? i : top), 0);
    card.classList.toggle("cl-gone", out);
    card.classList.toggle("cl-chosen", name === this.state.head);
    look.setAttribute("aria-pressed", String(name === this.state.head));
    look.setAttribute("aria-label", `${name}, attends to ${visible(reply.tokens[best].text)} with ${percent(row[best])}`);
    const button = card.children[1];
    button.setAttribute("aria-checked", String(!out));
    button.children[1].textContent = out ? "off" : "on";
    thumbnail(/** @type {HTMLCanvasElement} */ (look.querySelector("canvas")), reply.patterns[layer], head, reply.tokens.length, reply.at);
  }

  /** @param {string} name */
  card(name) {
    return h(
      "div",
      { class: "cl-card" },
      h("button", { type: "button", class: "cl-look", click: () => this.change({ head: name }, `You chose ${name}`) }, h("span", { class: "cl-name" }, name), h("canvas", { class: "cl-map", "aria-hidden": "true" })),
      h("button", { type: "button", class: "cl-switch", role: "switch", "aria-label": name, click: () => this.toggle(name) }, h("span", { class: "cl-knob", "aria-hidden": "true" }), h("span", { class: "cl-inout", "aria-hidden": "true" }, "on")),
    );
  }

  /** Fade the side of the strip on which there are more tokens. */
  edges() {
    const { scrollLeft, clientWidth, scrollWidth } = this.strip;
    this.strip.classList.toggle("cl-more-left", scrollLeft > 4);
    this.strip.classList.toggle("cl-more-right", scrollLeft + clientWidth < scrollWidth - 4);
  }

  /** Everything that depends on how wide the page is. */
  picture() {
    const { reply } = this;
    if (!reply || this.ready !== reply || !this.root.isConnected) return;
    // First everything that is measured, so that the page is laid out once.
    const middles = [...this.chips.children].map((chip) => (chip instanceof HTMLElement ? chip.offsetLeft + chip.offsetWidth / 2 : 0));
    const wide = this.chips.scrollWidth;
    wires({ box: this.circuit, wires: this.svg, cards: this.cards }, reply, this.effects, this.state.cuts, this.marked(), (name) => this.toggle(name), (name) => this.point(name));
    for (const svg of [this.above, this.below]) {
      svg.setAttribute("width", String(wide));
      svg.setAttribute("height", "66");
    }
    this.below.classList.toggle("cl-none", reply.nLayers < 2);
    this.above.classList.toggle("cl-none", reply.nLayers < 1);
    this.edges();
    arcs(this.above, this.below, middles, reply, this.state.head, this.state.cuts);
  }

  /** Show the effect of a wire while the pointer or the focus is on it. @param {string | null} name */
  point(name) {
    for (const wire of this.svg.querySelectorAll(".cl-wire")) wire.classList.toggle("cl-pointed-at", wire.getAttribute("data-wire") === name);
    this.pointed.textContent = name ? `${name} adds ${signed(this.effects[name] ?? 0)} to the logit. ${this.state.cuts.includes(name) ? "Click to reconnect it." : "Click to cut it."}` : "";
  }

  /** The wires as buttons: the strongest, those that are cut, and all of them. */
  list() {
    const reply = /** @type {Reply} */ (this.reply);
    const { cuts } = this.state;
    const wire = (/** @type {string} */ name) => name.includes(">");
    const strong = Object.keys(this.effects).filter((name) => wire(name) && (Math.abs(this.effects[name]) >= 0.25 || cuts.includes(name)));
    strong.sort((a, b) => Math.abs(this.effects[b]) - Math.abs(this.effects[a]));
    const shown = strong.filter((name, i) => i < 5 || cuts.includes(name));
    const button = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ kind) => {
      const value = this.effects[name] ?? 0;
      const made = h(
        "button",
        { type: "button", class: `cl-cut cl-${tone(value)}`, "aria-pressed": String(cuts.includes(name)), "aria-label": `Cut ${name}, effect ${signed(value)}`, "data-key": `${kind} ${name}`, click: () => this.toggle(name), pointerenter: () => this.point(name), pointerleave: () => this.point(null), focus: () => this.point(name), blur: () => this.point(null) },
        label && h("span", {}, h("b", { class: `cl-key cl-${name[name.length - 1]}`, "aria-hidden": "true" }, name[name.length - 1]), ` ${label}`),
        h("b", {}, signed(value)),
      );
      made.style.setProperty("--share", String(Math.min(1, Math.abs(value) / 10)));
      return made;
    };
    const open = this.wireList.querySelector("details")?.open ?? false;
    const target = reply.answer.text;
    this.keepFocus(this.wireList, () => {
      if (reply.nLayers < 2) {
        this.wireList.replaceChildren();
        return;
      }
      const columns = Array.from({ length: reply.nHeads }, (_, head) => INPUTS.map((input) => `${headName(1, head)}.${input}`)).flat();
      const sources = Array.from({ length: reply.nHeads }, (_, from) => headName(0, from));
      const table = () =>
        h(
          "div",
          { class: "cl-wide", tabindex: "0", role: "group", "aria-label": "All wires, a table that scrolls" },
          h(
            "table",
            { class: "cl-all" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "into"), sources.map((from) => h("th", { scope: "col" }, from)))),
            h("tbody", {}, columns.map((to) => h("tr", {}, h("th", { scope: "row" }, to), sources.map((from) => h("td", {}, button(`${from}->${to}`, "", "all")))))),
          ),
        );
      const all = h("details", { open, toggle: () => all.children.length < 2 && all.append(table()) }, h("summary", {}, `All ${columns.length * reply.nHeads} wires`), open && table());
      this.wireList.replaceChildren(
        h("p", { class: "cl-heading" }, "Wires to cut"),
        h("p", {}, "The number is how far the logit of ", word(target), " falls when this wire alone is cut."),
        h("div", { class: "cl-strong" }, shown.map((name) => button(name, name, "strong"))),
        all,
      );
    });
  }

  /** Draw anew what may hold the focus, and give it back. @param {HTMLElement} box @param {() => void} draw */
  keepFocus(box, draw) {
    const focused = document.activeElement instanceof HTMLElement && box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    draw();
    if (!focused) return;
    const again = [...box.querySelectorAll("[data-key]")].find((element) => element instanceof HTMLElement && element.dataset.key === focused);
    if (again instanceof HTMLElement) again.focus({ preventScroll: true });
  }

  /** The head whose output is the key of the chosen head: as the reader chose, else the strongest wire into its keys; -1 is the token itself. */
  writer() {
    const { head } = this.state;
    if (head[1] !== "1") return -1;
    if (this.via !== null) return this.via;
    const effect = [0, 1, 2, 3].map((from) => Math.abs(this.effects[`${headName(0, from)}->${head}.K`] ?? 0));
    const most = Math.max(...effect);
    return most < 1 ? -1 : effect.indexOf(most);
  }

  /** The open panel. @param {number} asked */
  async open(asked) {
    const reply = /** @type {Reply} */ (this.reply);
    const { state } = this;
    const tokenText = reply.tokens[reply.at].text;
    const source = Math.min(Math.max(this.source, 0), reply.at);
    const sourceText = reply.tokens[source].text;
    const choose = this.select("source", "Source token", reply.tokens.slice(0, reply.at + 1).map(({ text }, i) => ({ value: i, name: `${visible(text)} (${i})` })), source, (value) => (this.source = value));
    /** @type {(HTMLElement | string)[]} */
    let made = [];
    if (state.tab === "parts") made = partsPanel(reply, state.cuts.length > 0);
    else if (state.tab === "python") {
      const code = pythonFor(state, { at: reply.at, answer: reply.answer.id, source, token: reply.tokens[reply.at].id, sourceToken: reply.tokens[source].id, text: reply.answer.text, tokenText, via: this.writer() < 0 ? "" : headName(0, this.writer()), sourceText, cropped: reply.cropped, lastStep: this.steps[state.model][this.steps[state.model].length - 1] });
      made = pythonPanel(code, (text) => this.copy(text, "The Python is copied"));
    } else if (!state.head) made = [h("p", {}, "This model has no heads.")];
    else if (state.tab === "score") {
      const score = await client.ask("score", { ...this.setting(), at: reply.at, head: state.head, source });
      made = scorePanel(score, state, { token: tokenText, source: sourceText, choose });
    } else {
      const later = state.head[1] === "1";
      const writer = this.writer();
      const via = writer >= 0 ? writer : undefined;
      const words = await client.ask("words", { model: this.file(state), head: state.head, token: reply.tokens[reply.at].id, source: reply.tokens[source].id, via });
      const writers = [{ value: -1, name: "the token itself" }, ...Array.from({ length: reply.nHeads }, (_, head) => ({ value: head, name: `the output of ${headName(0, head)}` }))];
      const chooseVia = later ? this.select("via", "What the keys are made from", writers, writer, (value) => (this.via = value)) : null;
      made = wordsPanel(words, state, { token: tokenText, source: sourceText, chooseSource: choose, chooseVia });
    }
    if (asked !== this.asked) return;
    this.keepFocus(this.panel, () => this.panel.replaceChildren(...made));
  }

  /**
   * @param {string} key @param {string} label @param {{value: number, name: string}[]} options @param {number} chosen
   * @param {(value: number) => void} set
   */
  select(key, label, options, chosen, set) {
    const made = /** @type {HTMLSelectElement} */ (
      h("select", { "aria-label": label, "data-key": key, change: () => {
        set(Number(made.value));
        this.open(this.asked);
      } }, options.map(({ value, name }) => h("option", { value }, name)))
    );
    made.value = String(chosen);
    return made;
  }
}

/** @type {WeakMap<HTMLElement, Lab>} */
const labs = new WeakMap();

/**
 * Bring the lab of an element to life, or to another state.
 * @param {HTMLElement} element @param {string} address
 */
export async function open(element, address) {
  /** @type {{steps: Steps}} */
  const { steps } = await window.circuitLab.need("text");
  const preset = PRESETS.find(({ id }) => id === element.dataset.preset) ?? PRESETS[0];
  const asked = fromAddress(address, steps);
  const state = asked ?? fromPreset(preset);
  const unread = address && !asked ? "The link could not be read, so the lab starts from the preset" : asked && left(address, asked) ? "A part of the link could not be read" : "";
  let lab = labs.get(element);
  if (lab) {
    await lab.change(state, unread || "From the link");
    return;
  }
  await rest();
  lab = new Lab(element, state, steps);
  await client.bring(lab.file(state));
  await rest();
  labs.set(element, lab);
  element.append(lab.root);
  await rest();
  await lab.update(unread || "Ready");
  // Only now does the lab take the place of the picture, so that a reader does not see it grow.
  element.classList.add("cl-live");
  const had = element.contains(document.activeElement) && !lab.root.contains(document.activeElement);
  if (had) (lab.preset() && element.dataset.home === undefined ? lab.presets[0] : lab.circuit).focus({ preventScroll: true });
  for (const old of element.querySelectorAll(".cl-start, .cl-poster .cl-go")) old.remove();
  // The lab is shorter than the picture that it replaces, so its top could be above the window.
  if (had && lab.root.getBoundingClientRect().top < 0) lab.root.scrollIntoView({ block: "start", behavior: "instant" });
}
