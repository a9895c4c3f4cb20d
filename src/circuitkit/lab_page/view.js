/**
 * The lab as a reader sees it: every reply is drawn into the elements of the frame.
 */
import { openCloseup } from "./closeup.js";
import { h, percent, signed, spoken, thousands, visible } from "./dom.js";
import { arcs, mainSource, mark, thumbnail, tone, wires } from "./draw.js";
import { buildFrame } from "./frame.js";
import { Guess } from "./guess.js";
import { allNames, headName, INPUTS, parseCut, parseGate } from "./names.js";
import { gatesPanel, neuronsPanel } from "./neurons.js";
import { guessTable, partsPanel, pythonPanel, scorePanel, word, wordsPanel } from "./panels.js";
import { PRESETS } from "./presets.js";
import { pythonFor } from "./python.js";
import { OWN } from "./session.js";
import { byHand, reasons } from "./reasons.js";
import { hasTab, TABS, toAddress } from "./state.js";

/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./session.js").Session} Session */

let count = 0;

/** What stays cut under a new text. @param {string[]} cuts @param {boolean} patched */
function stillCut(cuts, patched) {
  if (!cuts.length) return "";
  const names = cuts.map((name) => (parseGate(name) ? spoken(name) : name));
  const named = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(" and ");
  const gone = cuts.some(parseGate) ? "changed" : patched ? "patched" : cuts.every((name) => name.includes(">")) ? "cut" : cuts.some((name) => name.includes(">")) ? "cut or off" : "off";
  return ` ${named} ${cuts.length > 1 ? "are" : "is"} still ${gone}.`;
}
/** As many wires are all listed. */
const FEW = 6;
/** In bytes: 3 million weights of 16 bits in base64, and the scripts. */
const LARGEST_FILE = 12_000_000;

export class View {
  /** @param {HTMLElement} element @param {Session} session */
  constructor(element, session) {
    this.element = element;
    this.session = session;
    session.screen = this;
    const number = ++count;
    this.id = (/** @type {string} */ name) => `cl-${number}-${name}`;
    this.home = element.dataset.home !== undefined;
    this.frame = buildFrame(this.id, this.acts(), this.home);
    this.guess = new Guess(element, () => this.opened());
    /** @type {Reply | null} */
    this.ready = null; // the reply whose tokens and heads are on the page
    /** @type {Map<string, HTMLElement>} */
    this.cards = new Map();
    /** @type {Map<string, HTMLElement>} the switches of the MLPs */
    this.mlps = new Map();
    this.shape = "";
    this.focusChip = false;
    this.size = "";
    const watcher = new ResizeObserver(() => this.resized());
    watcher.observe(this.frame.root);
    watcher.observe(this.frame.circuit);
    // While the lab is in the window of a phone, the arrow to the top of the page does not cover it.
    new IntersectionObserver(([{ isIntersecting }]) => element.classList.toggle("cl-here", isIntersecting)).observe(this.frame.root);
    if (element.dataset.given === undefined) this.takeFiles();
    this.alone = element.dataset.own !== undefined; // the page is a file with one model
    for (const part of this.alone ? [this.frame.presetRow, this.frame.modelField] : element.dataset.given !== undefined ? [this.frame.fileField] : []) part.hidden = true;
    /** @type {import("./interface.js").OwnModel | null} */
    this.listed = null; // the model whose rows can be chosen
  }

  /** What the measured wires add, unless the page holds it back. */
  effects() {
    return this.guess.holds("wires") ? {} : this.session.effects;
  }

  /** The state that is on the page: the session may have a newer one, whose reply is not here yet. */
  drawn() {
    return this.session.replied ?? this.session.state;
  }

  /** The reader has made her guess: show what was closed. */
  opened() {
    const had = this.frame.hint.contains(document.activeElement);
    this.controls();
    if (had) this.frame.circuit.focus({ preventScroll: true });
    if (!this.ready || this.ready !== this.session.reply || this.drawn() !== this.session.state) return;
    this.picture();
    this.list();
    this.open(this.session.asked);
  }

  resized() {
    const size = `${this.frame.root.clientWidth} ${this.frame.circuit.clientHeight}`;
    if (this.size === size) return;
    this.size = size;
    this.picture();
  }

  // --- what the reader does ----------------------------------------------------------------------------------------

  /** @returns {import("./frame.js").Acts} */
  acts() {
    const { session } = this;
    return {
      begin: (preset) => session.begin(preset),
      typed: (text, which) => session.typed(text, which),
      second: () => this.second(),
      swap: () => session.swap(),
      chooseModel: (model) => session.chooseModel(model),
      slide: (place) => this.slide(session.stepAt(place)),
      fill: (fill, label) => session.change({ fill }, fill === "patch" ? "Heads and wires are patched from the second text" : `A head that is switched off writes ${label}`),
      walk: (event) => this.walk(event),
      turn: (event) => this.turn(event),
      key: (event) => this.key(event),
      showTab: (tab) => session.change({ tab }, null),
      edges: () => this.edges(),
      back: () => session.back(),
      again: () => session.again(),
      find: (query) => session.engine.find({ model: session.file(session.state), query }),
      follow: (answer) => session.change({ answer }, "Chosen token"),
      reset: () => session.change({ cuts: [] }, "All wires are connected and all heads are on"),
      copyLink: () => this.copyLink(),
      chooseRow: (row) => session.change({ text: session.own?.rows[row].text ?? "", at: -1, answer: -1 }, "New text"),
      openFile: (file) => this.openFile(file),
    };
  }

  /** @param {number} step  of training */
  slide(step) {
    this.frame.stepNow.textContent = thousands(step);
    this.session.slide(step);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const typing = event.target instanceof HTMLTextAreaElement || (event.target instanceof HTMLInputElement && event.target.type === "text");
    if (!(event.ctrlKey || event.metaKey) || event.altKey || typing) return;
    const pressed = event.key.toLowerCase();
    if (pressed !== "z" && pressed !== "y") return;
    event.preventDefault();
    if (pressed === "y" || event.shiftKey) this.session.again();
    else this.session.back();
  }

  /** Arrow keys along the tokens. @param {KeyboardEvent} event */
  walk(event) {
    const last = (this.session.reply?.tokens.length ?? 1) - 1;
    const at = this.session.reply?.at ?? 0;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(last, to)));
  }

  /** @param {number} at */
  choose(at) {
    this.focusChip = true;
    this.session.choose(at);
  }

  /** Arrow keys along the tabs. @param {KeyboardEvent} event */
  turn(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const shown = TABS.filter((_, i) => !this.frame.tabs[i].hidden && this.frame.tabs[i].isConnected);
    const to = shown[(shown.indexOf(this.session.state.tab) + step + shown.length) % shown.length];
    this.session.change({ tab: to }, null);
    this.frame.tabs[TABS.indexOf(to)].focus();
  }

  async copyLink() {
    const page = this.element.dataset.page ?? location.href;
    const address = new URL(toAddress(this.session.state), new URL(page, location.href)).href;
    await this.copy(address, "The link is copied");
    this.frame.link.value = address;
    this.frame.link.hidden = false;
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

  /** A file that `ck.lab` has written, chosen or dropped. Its scripts are never run: only its weights are read. @param {File | undefined} file */
  async openFile(file) {
    if (!file) return;
    this.say(`Opening ${file.name} …`);
    try {
      if (file.size > LARGEST_FILE) throw new Error(`it has ${thousands(Math.round(file.size / 1e6))} MB, and the lab reads at most ${LARGEST_FILE / 1e6}`);
      const found = /<script type="text\/plain" id="ck-lab-file">([\w+/=]*)<\/script>/.exec(await file.text());
      if (!found) throw new Error("ck.lab has not written it");
      await this.session.openFile(found[1]);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      this.say(`${file.name} could not be opened: ${reason.replace(/\.$/, "")}.`);
      this.frame.live.scrollIntoView({ block: "nearest" });
    }
    this.frame.file.value = ""; // so that the same file can be chosen again
  }

  /** Files can be dropped on the lab. */
  takeFiles() {
    const { root } = this.frame;
    root.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      root.classList.add("cl-drop");
    });
    for (const end of ["dragleave", "drop"]) root.addEventListener(end, () => root.classList.remove("cl-drop"));
    root.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.openFile(event.dataTransfer.files[0]);
    });
  }

  // --- what the session has drawn ----------------------------------------------------------------------------------

  /** @param {string} said */
  say(said) {
    this.frame.live.textContent = said;
    this.frame.echo.textContent = said;
  }

  /** A state is asked for: show it, and that its reply is not here yet. */
  begin() {
    this.frame.root.setAttribute("aria-busy", "true");
    this.guess.see(this.session.state.cuts);
    this.controls();
  }

  /**
   * @param {Reply} reply @param {string | null} said @param {Reply | null} before @param {() => Promise<void>} effects
   * @returns {(() => unknown)[]}
   */
  drawing(reply, said, before, effects) {
    const { asked } = this.session;
    return [
      () => this.tell(said, before),
      ...this.chipRow(reply),
      ...this.headRows(reply),
      () => {
        this.ready = reply;
        return effects();
      },
      () => this.picture(),
      () => this.list(),
      () => this.open(asked),
      () => this.address(),
    ];
  }

  /** Further wires are measured. @param {number} left */
  more(left) {
    this.picture();
    if (!left) this.list();
  }

  /** @param {number} asked */
  end(asked) {
    this.frame.root.removeAttribute("aria-busy");
    this.frame.root.dataset.drawn = String(asked);
  }

  /** On the page of the lab, the state goes into the address, so that the page itself can be linked. */
  address() {
    // A model that the reader has brought is not in a link.
    if (this.element.dataset.linked === undefined || !this.session.past.length || this.session.state.model === OWN) return;
    try {
      history.replaceState(null, "", toAddress(this.session.state));
    } catch {
      /* a page opened from a file may not change its address */
    }
  }

  /** What to do next. @param {import("./presets.js").Preset} preset */
  task(preset) {
    if (preset.cut && this.session.state.cuts.includes(preset.cut)) return [byHand(preset.then)];
    return this.session.marked() ? [mark(), " ", h("b", {}, byHand(preset.try))] : [byHand(preset.try)];
  }

  /** What shows the state itself. */
  controls() {
    const { state } = this.session;
    const preset = this.session.preset();
    this.frame.presets.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.preset === preset?.id)));
    const patches = byHand("Click a head's switch or a wire: it takes the values that it has in the second text.");
    const asked = this.guess.held?.task ? this.guess.task() : [...(preset ? this.task(preset) : []), ...this.guess.waits()];
    this.frame.hint.replaceChildren(...(this.patching() ? [patches] : asked));
    if (document.activeElement !== this.frame.text || !this.session.typing) this.frame.text.value = state.text;
    this.showOwn(state.model === OWN ? this.session.own : null);
    this.frame.model.value = state.model;
    const steps = this.session.steps[state.model];
    this.frame.training.hidden = steps.length < 2;
    this.frame.slider.max = String(steps.length - 1);
    this.frame.slider.value = String(steps.indexOf(state.step));
    this.frame.stepNow.textContent = thousands(state.step);
    this.frame.slider.setAttribute("aria-valuetext", `step ${state.step}`);
    this.twoTexts();
    for (const label of [this.frame.zero, this.frame.mean, this.frame.patch]) {
      const input = /** @type {HTMLInputElement} */ (label.firstChild);
      input.checked = input.value === state.fill;
    }
    this.frame.undo.setAttribute("aria-disabled", String(!this.session.past.length));
    this.frame.redo.setAttribute("aria-disabled", String(!this.session.future.length));
    this.frame.restore.setAttribute("aria-disabled", String(!state.cuts.length));
    this.frame.link.hidden = true;
    this.frame.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(TABS[i] === state.tab));
      tab.tabIndex = TABS[i] === state.tab ? 0 : -1;
      tab.hidden = !hasTab(TABS[i], this.session.shape());
    });
    this.frame.panel.setAttribute("aria-labelledby", this.id(`tab-${state.tab}`));
  }

  /** The second text and what goes with it. */
  twoTexts() {
    const { other, counts, secondField, twoTexts, swap, patch, act, done } = this.frame;
    const { state, reply, replied, typing, field } = this.session;
    const two = state.other !== undefined;
    secondField.hidden = swap.hidden = patch.hidden = !two;
    twoTexts.textContent = two ? "Remove the second text" : "Add a second text";
    act.textContent = this.patching() ? "patched from the second text" : "cut";
    done.textContent = this.patching() ? "patched" : "cut";
    if (document.activeElement !== other || !typing || field !== "other") other.value = state.other ?? "";
    if (!two || !reply?.other || replied !== state) return;
    const { count, fits } = reply.other;
    const first = reply.tokens.length;
    counts.textContent = fits ? `Both texts have ${count} tokens.` : `${count} tokens, and the first text has ${first}. Nothing is patched, because patching needs the same number: a value comes from the same position of the other text. patch= of the library needs it, too.`;
  }

  /** Whether a click patches and does not cut. */
  patching() {
    return this.session.state.fill === "patch";
  }

  /** Add or remove the second text; the focus goes where the reader goes on. */
  async second() {
    await this.session.second();
    if (this.session.state.other !== undefined) this.frame.other.focus();
  }

  /** What is different with a model that the reader has brought. @param {import("./interface.js").OwnModel | null} own */
  showOwn(own) {
    const { model, rowSelect, rowsField, verdict, textLabel, fillLegend, mean } = this.frame;
    rowsField.hidden = !own || own.rows.length < 2;
    verdict.hidden = !own;
    this.frame.share.hidden = this.alone || own !== null;
    textLabel.textContent = own && !own.types ? "Token ids" : "Text";
    fillLegend.textContent = own ? "In place of a head that is switched off, or of a cut wire, stands" : "A head that is switched off writes";
    const average = own ? "the average output on the texts of the file" : "its average output on held-out text";
    /** @type {ChildNode} */ (mean.lastChild).textContent = ` ${average}`;
    if (!own) return;
    if (this.listed !== own) {
      this.listed = own;
      for (const old of model.querySelectorAll(`[value=${OWN}]`)) old.remove();
      model.append(h("option", { value: OWN }, own.title));
      rowSelect.replaceChildren(...own.rows.map(({ shown }, value) => h("option", { value }, visible(shown.slice(0, 60)))));
      const small = (/** @type {number} */ value) => (value === 0 ? "0" : value.toPrecision(2));
      verdict.replaceChildren(
        h("b", {}, "Agrees with PyTorch."),
        ` The page has computed ${thousands(own.count)} logits again, with and without cuts. The largest difference is ${small(own.difference)}, and the largest logit is ${small(own.largest)}. ` +
          `Rounding the weights to 16 bits had changed a logit of these texts by at most ${small(own.rounding[0])}.` +
          (own.alone ? " This browser allows the page no worker, so the page itself computes and may not react in the meantime." : ""),
      );
    }
    rowSelect.value = String(own.rows.findIndex(({ text }) => text === this.session.state.text));
  }

  /** The next tokens, and a sentence about what has changed. @param {string | null} said @param {Reply | null} before */
  tell(said, before) {
    const reply = /** @type {Reply} */ (this.session.reply);
    const changed = this.session.state.cuts.length > 0;
    this.keepFocus(this.frame.guesses, () => this.frame.guesses.replaceChildren(guessTable(reply, changed, this.patching(), (answer) => this.acts().follow(answer))));
    const { answer } = reply;
    const called = (/** @type {string} */ text) => (/[\p{L}\p{N}]/u.test(text) ? visible(text) : `“${visible(text)}”`);
    const name = called(answer.text);
    // Another text or place is another question, not a change.
    const same = before?.at === reply.at && before.tokens.map(({ id }) => id).join() === reply.tokens.map(({ id }) => id).join() ? before : null;
    const was = same?.answer.id === answer.id ? same.answer.after : undefined;
    const top = (/** @type {Reply} */ of) => of.guesses.reduce((best, guess) => (guess.after > best.after ? guess : best));
    const first = top(reply);
    // Another step is another model: nothing was done to this one, so the probabilities are those of this step alone.
    const stepped = /raining step/.test(said ?? "");
    const changes = was === undefined ? "" : percent(was) === percent(answer.after) ? "stays at" : answer.after < was ? "falls" : "rises";
    const move = stepped ? `at this step, ${name} has ${changed ? `${percent(answer.before)} in the intact model and ${percent(answer.after)} with your edits` : percent(answer.after)}` : !changes ? `the probability of ${name} is ${percent(answer.after)}` : changes === "stays at" ? `${name} stays at ${percent(answer.after)}` : `${name} ${changes} from ${percent(was ?? 0)} to ${percent(answer.after)}`;
    const lead = first.id === answer.id ? "" : `, and the most probable token is ${same && top(same).id !== first.id ? "now " : ""}${called(first.text)} with ${percent(first.after)}`;
    const cropped = reply.cropped ? ` The model reads only the first ${reply.tokens.length} tokens.` : "";
    const byte = reply.tokens.find(({ text }) => /^<[0-9A-F]{2}>$/.test(text));
    const bytes = byte ? ` The model has no token for one of the characters and reads its bytes, such as ${byte.text}.` : "";
    const empty = !this.session.state.text ? " The text is empty, so the model reads only its start token." : "";
    const token = said ? "" : `Position ${reply.at}, ${visible(reply.tokens[reply.at].text)}. `;
    const still = said === "New text" || said === "New second text" || said?.startsWith("Training step") ? stillCut(this.session.state.cuts, this.patching()) : "";
    this.twoTexts();
    const there = answer.other === undefined ? "" : ` After the second text, ${name} has ${percent(answer.other)}.`;
    const unlike = reply.other && !reply.other.fits ? ` Nothing is patched: the second text has ${reply.other.count} tokens, and the first has ${reply.tokens.length}.` : "";
    if (said !== null) this.say(`${said ? `${said}: ` : token}${move}${lead}.${there}${unlike}${still}${cropped}${bytes}${empty}`);
    this.whyNot(reply);
    this.session.unsaid = null;
    const { state } = this.session;
    const guesses = reply.guesses.slice(0, 5).map((guess) => `${called(guess.text)} ${percent(guess.after)}`).join(", ");
    this.frame.paper.textContent =
      `The figure shows the circuit at the start. On this page, the model was ${this.session.own && state.model === OWN ? this.session.own.title : `${state.model} at step ${thousands(state.step)}`}, and the text was “${state.text}”` +
      `${state.cuts.length ? `, without ${state.cuts.join(", ")}` : ""}. At position ${reply.at}, ${visible(reply.tokens[reply.at].text)}, the model predicts: ${guesses}.`;
    this.frame.legend.hidden = reply.nLayers < 2;
    this.frame.reading.hidden = reply.nLayers < 1;
    this.frame.top.replaceChildren("next: ", word(first.text), " ", h("b", {}, percent(first.after)));
    const earlier = reply.tokens.slice(1, reply.at).map(({ text }) => text).join(this.session.own?.types === false || this.session.state.model === "gated" ? " " : "").replace(/\s+/g, " ");
    const tail = earlier.length > 26 ? `… ${earlier.slice(-26).replace(/^\S*\s/, "")}` : earlier;
    this.frame.bottom.replaceChildren(`${tail} `, word(reply.tokens[reply.at].text));
    this.looked(reply);
  }

  /** Why a repeat is not continued. @param {Reply} reply */
  whyNot(reply) {
    const { why, whyNot, presetRow } = this.frame;
    const made = reasons(reply);
    why.replaceChildren(...made);
    whyNot.hidden = !made.length;
    for (const old of whyNot.querySelectorAll("button")) old.remove();
    // Without cuts, it is the text that fails; where the lab has its presets, it can show one that does not.
    if (!made.length || this.session.state.cuts.length || presetRow.hidden || !presetRow.isConnected) return;
    whyNot.append(h("button", { type: "button", class: "cl-button", click: () => this.session.begin(PRESETS[0]) }, `Try a text that works: ${PRESETS[0].name.toLowerCase()}`));
  }

  /** Where the chosen head looks, in words. @param {Reply} reply */
  looked(reply) {
    const head = parseCut(this.session.state.head);
    if (!head) {
      this.frame.looks.textContent = "A model without layers has no attention: its prediction depends on the last token alone.";
      return;
    }
    const row = this.row(reply, head.layer, head.head);
    const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a]);
    if (this.session.source < 0 || this.session.source > reply.at) {
      this.session.source = mainSource(row);
    }
    const seen = order.filter((i) => row[i] >= 0.05).slice(0, 4);
    const out = this.session.state.cuts.includes(this.session.state.head) ? " (switched off)" : "";
    if (!seen.length) {
      this.frame.looks.textContent = `${this.session.state.head}${out} attends to no token with 5% or more.`;
      return;
    }
    this.frame.looks.replaceChildren(
      `${this.session.state.head}${out} attends from `, word(reply.tokens[reply.at].text), " to ",
      ...seen.flatMap((i, k) => [k ? ", " : "", word(reply.tokens[i].text), ` ${percent(row[i])}`]), ".",
    );
  }

  /** @param {Reply} reply @param {number} layer @param {number} head */
  row({ patterns, at, tokens: { length: n } }, layer, head) {
    return patterns[layer].subarray((head * n + at) * n, (head * n + at) * n + at + 1);
  }

  /** The tokens, in parts: first the new ones, then their positions. @param {Reply} reply */
  chipRow(reply) {
    const { tokens, at, predicted } = reply;
    const { chips, strip } = this.frame;
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
      // Both ends of the main arc, if there is room for them.
      const end = this.mainEnd(reply).left;
      const right = chosen.offsetLeft + chosen.offsetWidth;
      const fits = right - end <= strip.clientWidth - 40;
      const left = fits ? end : chosen.offsetLeft;
      if (left < strip.scrollLeft + 20 || right > strip.scrollLeft + strip.clientWidth - 20) strip.scrollLeft = fits ? left - 20 : left - strip.clientWidth / 2;
      if (this.focusChip) chosen.focus({ preventScroll: true });
      this.focusChip = false;
    };
    return [...Array.from({ length: Math.ceil(tokens.length / some) }, (_, part) => draw(part * some)), show];
  }

  /** @param {number} i */
  chip(i) {
    const made = h("div", { class: "cl-chip", role: "option", "data-at": i, click: () => this.choose(i) }, h("bdi"), h("span", { class: "cl-seen", "aria-hidden": "true" }));
    this.frame.chips.append(made);
    return made;
  }

  /** The heads, in parts: all of them, then the pictures of each layer. @param {Reply} reply */
  headRows(reply) {
    const names = reply.patterns.map((_, layer) => Array.from({ length: reply.nHeads }, (__, head) => headName(layer, head)));
    const rows = () => {
      const shape = [...names.flat(), reply.nNeurons ?? 0].join();
      if (this.shape !== shape) {
        this.shape = shape;
        this.mlps.clear();
        this.cards = new Map(names.flat().map((name) => [name, this.card(name)]));
        this.frame.circuit.style.setProperty("--heads", String(reply.nHeads || 1));
        this.frame.left.classList.toggle("cl-many", reply.nHeads > 4);
        this.frame.rows.replaceChildren(
          ...[...names].reverse().flatMap((row, i) => [
            i ? h("div", { class: "cl-gap", "aria-hidden": "true" }) : null,
            reply.nNeurons ? this.mlp(`L${names.length - 1 - i} MLP`) : null,
            h("div", { class: "cl-row", role: "group", "aria-label": `Layer ${names.length - 1 - i}` }, row.map((name) => /** @type {HTMLElement} */ (this.cards.get(name)))),
          ]).filter((row) => row !== null),
        );
      }
      this.frame.circuit.classList.toggle("cl-two", reply.nLayers === 2);
    };
    return [rows, ...names.map((row) => () => row.forEach((name) => this.show(reply, name))), () => this.mlps.forEach((button, name) => this.turned(button, name))];
  }

  /** Whether what a switch stands for is on. @param {HTMLElement} button @param {string} name */
  turned(button, name) {
    const out = this.session.state.cuts.includes(name);
    button.classList.toggle("cl-gone", out);
    button.setAttribute("aria-checked", String(!out));
    button.setAttribute("aria-label", this.patching() ? `${name} as in the first text` : name);
    button.children[1].textContent = out ? (this.patching() ? "2nd" : "off") : "on";
  }

  /** The MLP of a layer, between what its heads write and the next layer. @param {string} name */
  mlp(name) {
    const button = this.switch(name);
    this.mlps.set(name, button);
    const open = h("button", { type: "button", class: "cl-look cl-name", click: () => this.session.change({ tab: "neurons" }, null).then(() => this.frame.panel.scrollIntoView({ block: "nearest" })) }, name, h("span", { class: "cl-number" }, "neurons"));
    return h("div", { class: "cl-mlp", role: "group", "aria-label": name }, open, button);
  }

  /** @param {string} name */
  switch(name) {
    return h("button", { type: "button", class: "cl-switch", role: "switch", "aria-label": name, click: () => this.session.toggle(name) }, h("span", { class: "cl-knob", "aria-hidden": "true" }), h("span", { class: "cl-inout", "aria-hidden": "true" }, "on"));
  }

  /** What a head does now. @param {Reply} reply @param {string} name */
  show(reply, name) {
    const card = /** @type {HTMLElement} */ (this.cards.get(name));
    const { layer, head } = /** @type {import("./names.js").Cut} */ (parseCut(name));
    const out = this.session.state.cuts.includes(name);
    const look = /** @type {HTMLElement} */ (card.children[0]);
    const row = this.row(reply, layer, head);
    const best = row.reduce((top, share, i) => (share > row[top] ? i : top), 0);
    card.classList.toggle("cl-gone", out);
    card.classList.toggle("cl-chosen", name === this.session.state.head);
    look.setAttribute("aria-pressed", String(name === this.session.state.head));
    look.setAttribute("aria-label", `${name}, attends to ${visible(reply.tokens[best].text)} with ${percent(row[best])}`);
    this.turned(/** @type {HTMLElement} */ (card.children[1]), name);
    thumbnail(/** @type {HTMLCanvasElement} */ (look.querySelector("canvas")), reply.patterns[layer], head, reply.tokens.length, reply.at);
  }

  /** @param {string} name */
  card(name) {
    return h(
      "div",
      { class: "cl-card" },
      h("button", { type: "button", class: "cl-look", "aria-haspopup": "dialog", click: () => this.closeup(name) }, h("span", { class: "cl-name" }, name), h("canvas", { class: "cl-map", "aria-hidden": "true" })),
      this.switch(name),
    );
  }

  /** The token that the chosen head attends to most, and where it is. @param {Reply} reply */
  mainEnd(reply) {
    const head = parseCut(this.drawn().head);
    const row = head ? this.row(reply, head.layer, head.head) : null;
    const i = row ? mainSource(row) : reply.at;
    return { text: reply.tokens[i].text, share: row ? row[i] : 0, left: /** @type {HTMLElement} */ (this.frame.chips.children[i]).offsetLeft };
  }

  /** Choose a head, and show it from near. @param {string} name */
  closeup(name) {
    this.session.change({ head: name }, `You chose ${name}`);
    openCloseup(this.frame.root, this.session, name, this.id);
  }

  /** Fade the side of the strip on which there are more tokens, and name the other end of the main arc where it is out of sight. */
  edges() {
    const { scrollLeft, clientWidth, scrollWidth } = this.frame.strip;
    this.frame.strip.classList.toggle("cl-more-left", scrollLeft > 4);
    this.frame.strip.classList.toggle("cl-more-right", scrollLeft + clientWidth < scrollWidth - 4);
    if (!this.ready || this.ready !== this.session.reply) return;
    const { text, share, left } = this.mainEnd(this.ready);
    const { far } = this.frame;
    far.hidden = share < 0.1 || left >= scrollLeft;
    far.dataset.left = String(left - 20);
    far.replaceChildren("← ", word(text), ` ${percent(share)}`);
  }

  /** Everything that depends on how wide the page is. */
  picture() {
    const { reply } = this.session;
    if (!reply || this.ready !== reply || !this.frame.root.clientWidth) return; // out of the page, or closed
    const drawn = this.guess.holds("parts") ? { ...reply, parts: { before: [], after: [] } } : reply;
    // First everything that is measured, so that the page is laid out once.
    const middles = [...this.frame.chips.children].map((chip) => (chip instanceof HTMLElement ? chip.offsetLeft + chip.offsetWidth / 2 : 0));
    const wide = this.frame.chips.scrollWidth;
    wires({ box: this.frame.circuit, wires: this.frame.svg, cards: this.cards }, drawn, this.effects(), this.drawn().cuts, this.session.marked(), (name) => this.session.toggle(name), (name) => this.point(name));
    for (const svg of [this.frame.above, this.frame.below]) {
      svg.setAttribute("width", String(wide));
      svg.setAttribute("height", "66");
    }
    this.frame.below.classList.toggle("cl-none", reply.nLayers < 2);
    this.frame.above.classList.toggle("cl-none", reply.nLayers < 1);
    this.edges();
    arcs(this.frame.above, this.frame.below, middles, reply, this.drawn().head, this.drawn().cuts);
  }

  /** Show the effect of a wire while the pointer or the focus is on it. @param {string | null} name */
  point(name) {
    for (const wire of this.frame.svg.querySelectorAll(".cl-wire")) wire.classList.toggle("cl-pointed-at", wire.getAttribute("data-wire") === name);
    if (name === null) {
      this.frame.pointed.textContent = "";
      return;
    }
    const value = this.effect(name);
    const cut = this.session.state.cuts.includes(name);
    const size = value === undefined ? "" : signed(this.patching() ? -value : value);
    const patched = cut ? `is patched${size && `, which changes the logit by ${size}`}. Click to take the patch back.` : `${size ? `changes the logit by ${size} when it is patched` : "is not measured yet"}. Click to patch it.`;
    const plain = cut ? `is cut${size && `, and would add ${size} to the logit`}. Click to reconnect it.` : `${size ? `adds ${size} to the logit` : "is not measured yet"}. Click to cut it.`;
    this.frame.pointed.textContent = byHand(`${name} ${this.patching() ? patched : plain}`);
  }

  /** The effect of a wire, as far as it is measured. @param {string} name */
  effect(name) {
    if (name.includes(">") && this.guess.holds("wires")) return undefined;
    return this.session.effects[name] ?? this.session.wires[name];
  }

  /** A wire as a button. @param {string} name @param {string} label @param {string} kind  of list */
  cutButton(name, label, kind) {
    const value = this.effect(name) ?? 0;
    const shown = this.effect(name) === undefined ? "…" : signed(value);
    const input = /\.([QKV])$/.exec(name)?.[1];
    const made = h(
      "button",
      { type: "button", class: `cl-cut cl-${tone(value)}`, "aria-pressed": String(this.session.state.cuts.includes(name)), "aria-label": `${this.patching() ? "Patch" : "Cut"} ${name}, effect ${shown === "…" ? "not measured yet" : shown}`, "data-key": `${kind} ${name}`, click: () => this.session.toggle(name), pointerenter: () => this.point(name), pointerleave: () => this.point(null), focus: () => this.point(name), blur: () => this.point(null) },
      label && h("span", {}, input && h("b", { class: `cl-key cl-${input}`, "aria-hidden": "true" }, input), ` ${label}`),
      h("b", {}, shown),
    );
    made.style.setProperty("--share", String(Math.min(1, Math.abs(value) / 10)));
    return made;
  }

  /** The wires as buttons: the strongest, those that are cut, and all of them. */
  list() {
    const reply = /** @type {Reply} */ (this.session.reply);
    const { cuts } = this.session.state;
    const wire = (/** @type {string} */ name) => name.includes(">");
    const size = (/** @type {string} */ name) => Math.abs(this.effect(name) ?? 0);
    const strong = [...new Set([...Object.keys(this.session.effects), ...cuts])].filter(wire);
    strong.sort((a, b) => size(b) - size(a));
    const all = allNames(reply.nLayers, reply.nHeads).filter(wire);
    // A handful of wires keep their order, so that a reader finds them again at another step.
    const few = all.length <= FEW;
    const shown = few ? [...new Set([...all, ...strong])] : strong.filter((name, i) => i < 5 || cuts.includes(name));
    const open = this.frame.wireList.querySelector("details")?.open ?? false;
    const target = reply.answer.text;
    this.keepFocus(this.frame.wireList, () => {
      if (reply.nLayers < 2) {
        this.frame.wireList.replaceChildren();
        return;
      }
      const heads = allNames(reply.nLayers, reply.nHeads).filter((name) => !wire(name)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const layerOf = (/** @type {string} */ name) => parseCut(name)?.layer ?? 0;
      const columns = heads.filter(layerOf).flatMap((head) => INPUTS.map((input) => `${head}.${input}`));
      const sources = heads.filter((head) => layerOf(head) < reply.nLayers - 1);
      const table = () =>
        h(
          "div",
          { class: "cl-wide", tabindex: "0", role: "group", "aria-label": "All wires, a table that scrolls" },
          h(
            "table",
            { class: "cl-all" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "into"), sources.map((from) => h("th", { scope: "col" }, from)))),
            h("tbody", {}, columns.map((to) => h("tr", {}, h("th", { scope: "row" }, to), sources.map((from) => h("td", {}, layerOf(from) < layerOf(to.split(".")[0]) && this.cutButton(`${from}->${to}`, "", "all")))))),
          ),
        );
      const folded = h("details", { open, toggle: () => folded.children.length < 2 && folded.append(table()) }, h("summary", {}, `All ${all.length} wires`), open && table());
      const cut = this.patching() ? "patched from the second text" : "cut";
      this.frame.wireList.replaceChildren(
        h("p", { class: "cl-heading" }, this.patching() ? "Wires to patch" : "Wires to cut"),
        this.guess.holds("wires") ? this.guess.note("How much each wire matters is shown") : h("p", {}, "The number is how far the logit of ", word(target), ` falls when the wire is ${cut}, in the model as it is now${cuts.some(wire) ? `; for a wire that is ${this.patching() ? "patched" : "cut"} already, how far it rises when this is taken back` : ""}.`),
        h("div", { class: "cl-strong" }, shown.map((name) => this.cutButton(name, name, "strong"))),
        few ? "" : folded,
      );
    });
  }

  /** Draw anew what may hold the focus, and give it back. @param {HTMLElement} box @param {() => void} draw */
  keepFocus(box, draw) {
    const key = document.activeElement instanceof HTMLElement && box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    draw();
    this.giveFocus(box, key);
    return key;
  }

  /** Focus what has a key, unless the focus is somewhere. @param {HTMLElement} box @param {string | undefined} key */
  giveFocus(box, key) {
    if (!key || (document.activeElement && document.activeElement !== document.body)) return;
    const again = [...box.querySelectorAll("[data-key]")].find((element) => element instanceof HTMLElement && element.dataset.key === key);
    if (again instanceof HTMLElement) again.focus({ preventScroll: true });
  }

  /** The open panel. @param {number} asked */
  async open(asked) {
    const reply = /** @type {Reply} */ (this.session.reply);
    const { state } = this.session;
    const tokenText = reply.tokens[reply.at].text;
    const source = Math.min(Math.max(this.session.source, 0), reply.at);
    const sourceText = reply.tokens[source].text;
    const choose = this.select("source", "Source token", reply.tokens.slice(0, reply.at + 1).map(({ text }, i) => ({ value: i, name: `${visible(text)} (${i})` })), source, (value) => (this.session.source = value));
    /** @type {(HTMLElement | string)[]} */
    let made = [];
    /** @type {((asked: number, going: () => boolean, shown: () => void) => Promise<void>) | null} */
    let fill = null;
    if (this.guess.holds(state.tab)) made = [this.guess.note("This panel opens")];
    else if (state.tab === "parts") made = partsPanel(reply, state.cuts.length > 0);
    else if (state.tab === "neurons") ({ made, fill } = neuronsPanel(this.session, reply, (name, label, kind) => this.cutButton(name, label, kind)));
    else if (state.tab === "gates") {
      const setting = { ...this.session.setting(), at: reply.at, answer: reply.answer.id };
      const gates = await this.session.engine.gates({ ...setting, source });
      const names = gates.flatMap(({ name }) => [`${name} open`, `${name} shut`]);
      made = gatesPanel(this.session, reply, choose, gates, (await this.session.engine.measure({ ...setting, names, from: 0, time: 2000 })).found);
    }
    else if (state.tab === "python") {
      const own = state.model === OWN ? this.session.own : null;
      const code = pythonFor(state, { own, fits: reply.other?.fits ?? false, back: reply.at - source, at: reply.at, answer: reply.answer.id, source, token: reply.tokens[reply.at].id, sourceToken: reply.tokens[source].id, text: reply.answer.text, tokenText, via: this.session.writer(), sourceText, cropped: reply.cropped, lastStep: this.session.steps[state.model][this.session.steps[state.model].length - 1] });
      made = pythonPanel(code, (text) => this.copy(text, "The Python is copied"));
    } else if (!state.head) made = [h("p", {}, "This model has no heads.")];
    else if (state.tab === "score") {
      const score = await this.session.engine.score({ ...this.session.setting(), at: reply.at, head: state.head, source });
      made = scorePanel(score, state, { token: tokenText, source: sourceText, choose });
    } else {
      const before = ["", ...this.session.writers()];
      const writer = this.session.writer();
      const words = await this.session.engine.words({ model: this.session.file(state), head: state.head, token: reply.tokens[reply.at].id, source: reply.tokens[source].id, via: writer, back: reply.at - source });
      const writers = before.map((name, value) => ({ value, name: name ? `the output of ${name}` : "the token itself" }));
      const chooseVia = before.length > 1 ? this.select("via", "What the keys are made from", writers, before.indexOf(writer), (value) => (this.session.via = before[value])) : null;
      made = wordsPanel(words, state, { token: tokenText, source: sourceText, chooseSource: choose, chooseVia });
    }
    if (asked !== this.session.asked) return;
    const key = this.keepFocus(this.frame.panel, () => this.frame.panel.replaceChildren(...made));
    // Not awaited: it goes on until another state is asked for.
    const [first] = made;
    fill?.(asked, () => first instanceof HTMLElement && first.isConnected && asked === this.session.asked, () => this.giveFocus(this.frame.panel, key)).catch(() => {});
  }

  /**
   * @param {string} key @param {string} label @param {{value: number, name: string}[]} options @param {number} chosen
   * @param {(value: number) => void} set
   */
  select(key, label, options, chosen, set) {
    const made = /** @type {HTMLSelectElement} */ (
      h("select", { "aria-label": label, "data-key": key, change: () => {
        set(Number(made.value));
        if (this.drawn() === this.session.state) this.open(this.session.asked); // else the panel is drawn anew soon
      } }, options.map(({ value, name }) => h("option", { value }, name)))
    );
    made.value = String(chosen);
    return made;
  }
}
