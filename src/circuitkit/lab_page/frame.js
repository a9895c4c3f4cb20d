/**
 * The elements of the lab and where they stand. What a reader does with one of them is handed to `acts`.
 */
import { h, s } from "./dom.js";
import { PRESETS } from "./presets.js";
import { buildFinder } from "./reasons.js";
import { MODELS } from "./session.js";
import { LONGEST, TABS } from "./state.js";

/** @typedef {(name: string) => string} Id  an identifier that no other lab of the page has */
/** @typedef {ReturnType<typeof buildFrame>} Frame */
/**
 * @typedef {object} Acts  what a reader can do
 * @property {(preset: import("./presets.js").Preset) => void} begin
 * @property {(text: string, which?: "text" | "other") => void} typed
 * @property {() => void} second  begin or leave a second text
 * @property {() => void} swap
 * @property {(model: string) => void} chooseModel
 * @property {(place: number) => void} slide
 * @property {(fill: "zero" | "mean" | "patch", label: string) => void} fill
 * @property {(event: KeyboardEvent) => void} walk  along the tokens
 * @property {(event: KeyboardEvent) => void} turn  along the tabs
 * @property {(event: KeyboardEvent) => void} key
 * @property {(tab: string) => void} showTab
 * @property {() => void} edges
 * @property {() => void} back
 * @property {() => void} again
 * @property {(query: string) => Promise<{found: {id: number, text: string}[], count: number}>} find
 * @property {(answer: number) => void} follow  a token as the answer
 * @property {() => void} reset
 * @property {() => void} copyLink
 * @property {(row: number) => void} chooseRow  of the reader's own model
 * @property {(file: File | undefined) => void} openFile
 */

const TAB_NAMES = { parts: "Logit attribution", score: "Attention score", words: "Words of a head", neurons: "Neurons", gates: "Gates", python: "Python" };

/** Where a reader sets the text and the model. @param {Id} id @param {Acts} acts */
function buildInputs(id, acts) {
  const presets = PRESETS.map((preset) =>
    h("button", { type: "button", class: "cl-preset", "data-preset": preset.id, click: () => acts.begin(preset) }, preset.name),
  );
  const text = /** @type {HTMLTextAreaElement} */ (
    h("textarea", { id: id("text"), rows: 2, maxlength: LONGEST, spellcheck: "false", autocomplete: "off", autocapitalize: "off", input: () => acts.typed(text.value) })
  );
  const model = /** @type {HTMLSelectElement} */ (
    h("select", { id: id("model"), change: () => acts.chooseModel(model.value) }, Object.entries(MODELS).map(([value, name]) => h("option", { value }, name)))
  );
  const slider = /** @type {HTMLInputElement} */ (
    h("input", { type: "range", id: id("step"), min: 0, step: 1, input: () => acts.slide(Number(slider.value)), "aria-describedby": id("learned") })
  );
  const stepNow = h("output", { for: id("step") });
  const training = h("div", { class: "cl-training" }, h("label", { for: id("step") }, "Training step"), slider, stepNow);
  const presetRow = h("div", { class: "cl-presets", role: "group", "aria-label": "Start from" }, presets);
  const rowSelect = /** @type {HTMLSelectElement} */ (h("select", { id: id("rows"), change: () => acts.chooseRow(Number(rowSelect.value)) }));
  const rowsField = h("div", { class: "cl-field cl-rows-field", hidden: true }, h("label", { for: id("rows") }, "Start from a text of the file"), rowSelect);
  const textLabel = h("label", { for: id("text") }, "Text");
  const file = /** @type {HTMLInputElement} */ (h("input", { type: "file", accept: ".html", change: () => acts.openFile(file.files?.[0]) }));
  const fileField = h("label", { class: "cl-button cl-file", title: "A file that ck.lab(model, text).save() has written; you can also drop it on the lab" }, "Open your own model", file);
  const modelField = h("div", { class: "cl-field" }, h("label", { for: id("model") }, "Model"), model, training, fileField);
  const second = buildSecond(id, acts);
  const settings = h("div", { class: "cl-settings" }, h("div", { class: "cl-field cl-grow" }, textLabel, text, second.secondField, second.secondButtons), modelField);
  const verdict = h("p", { class: "cl-verdict", hidden: true });
  return { presets, presetRow, text, textLabel, model, modelField, slider, stepNow, training, settings, rowSelect, rowsField, file, fileField, verdict, ...second };
}

/** A second text, from which heads and wires can be patched into the first. @param {Id} id @param {Acts} acts */
function buildSecond(id, acts) {
  const other = /** @type {HTMLTextAreaElement} */ (
    h("textarea", { id: id("other"), rows: 2, maxlength: LONGEST, spellcheck: "false", autocomplete: "off", autocapitalize: "off", "aria-describedby": id("counts"), input: () => acts.typed(other.value, "other") })
  );
  const counts = h("p", { class: "cl-number", id: id("counts") });
  const secondField = h("div", { class: "cl-second", hidden: true }, h("label", { for: id("other") }, "Second text"), other, counts);
  const twoTexts = h("button", { type: "button", class: "cl-button", click: () => acts.second() }, "Add a second text");
  const swap = h("button", { type: "button", class: "cl-button", hidden: true, click: () => acts.swap() }, "Swap the texts");
  const secondButtons = h("div", { class: "cl-actions" }, twoTexts, swap);
  return { other, counts, secondField, secondButtons, twoTexts, swap };
}

/** The tokens with their arcs. @param {Acts} acts */
function buildStrip(acts) {
  const above = s("svg", { class: "cl-arcs", "aria-hidden": "true" });
  const below = s("svg", { class: "cl-arcs", "aria-hidden": "true" });
  const chips = h("div", { class: "cl-chips", role: "listbox", "aria-label": "Tokens: choose the one whose next token is predicted", "aria-orientation": "horizontal", keydown: (/** @type {KeyboardEvent} */ event) => acts.walk(event) });
  const strip = h("div", { class: "cl-strip" }, h("div", { class: "cl-strip-inside" }, above, chips, below));
  strip.addEventListener("scroll", () => acts.edges(), { passive: true });
  const far = h("button", { type: "button", class: "cl-button cl-far", hidden: true, tabindex: "-1", "aria-hidden": "true", pointerdown: (/** @type {Event} */ event) => event.preventDefault(), click: () => strip.scrollTo({ left: Number(far.dataset.left) }) });
  const looks = h("p", { class: "cl-looks" });
  const reading = h("p", { class: "cl-legend" }, "The arcs show attention, and the purple arcs belong to the chosen head. The bar under each token is the probability that the model gave it.");
  const tokens = h("div", { class: "cl-tokens" }, h("div", { class: "cl-strip-box" }, strip, far), looks, reading);
  return { above, below, chips, strip, far, looks, reading, tokens };
}

/** The circuit, and what is said about it. */
function buildCircuit() {
  const svg = s("svg", { class: "cl-wires", "aria-hidden": "true" });
  const top = h("div", { class: "cl-end cl-top" });
  const bottom = h("div", { class: "cl-end cl-bottom" });
  const rows = h("div", { class: "cl-rows" });
  const circuit = h("div", { class: "cl-circuit", tabindex: "-1" }, svg, top, rows, bottom);
  const pointed = h("p", { class: "cl-pointed", "aria-hidden": "true" });
  const echo = h("p", { class: "cl-echo", "aria-hidden": "true" }); // what is said, where a thumb on the circuit sees it
  const key = (/** @type {string} */ input, /** @type {string} */ name) => [h("b", { class: `cl-key cl-${input}` }, input), ` ${name}`];
  const [act, done] = [h("span", {}, "cut"), h("span", {}, "cut")];
  const legend = h("p", { class: "cl-legend" }, "The colour of a wire is the input that it enters: ", key("Q", "queries, "), key("K", "keys or "), key("V", "values. "), "Its width is how much the logit of the chosen token changes when the wire is ", act, ", in the model as it is now. A dashed wire lowers that logit, and a wire with a ✕ is ", done, ".");
  const left = h("div", { class: "cl-left" }, circuit, pointed, echo, legend);
  return { svg, top, bottom, rows, circuit, pointed, echo, legend, act, done, left };
}

/** What a head that is off writes. @param {Id} id @param {Acts} acts */
function buildFill(id, acts) {
  const radio = (/** @type {"zero" | "mean" | "patch"} */ value, /** @type {string} */ label) => {
    const input = h("input", { type: "radio", name: id("fill"), value, change: () => acts.fill(value, label) });
    return h("label", {}, input, ` ${label}`);
  };
  const zero = radio("zero", "nothing");
  const mean = radio("mean", "its average output on held-out text");
  const patch = radio("patch", "its output in the second text");
  const fillLegend = h("legend", {}, "A head that is switched off writes");
  const fillField = h("fieldset", { class: "cl-fill" }, fillLegend, zero, mean, patch);
  return { zero, mean, patch, fillField, fillLegend };
}

/** The buttons and the list of wires. @param {Id} id @param {Acts} acts @param {HTMLElement | false} fillField */
function buildSide(id, acts, fillField) {
  const guesses = h("div", { class: "cl-next" });
  const live = h("p", { class: "cl-status", role: "status", "aria-live": "polite" });
  const undo = h("button", { type: "button", class: "cl-button", click: () => acts.back() }, "Undo");
  const redo = h("button", { type: "button", class: "cl-button", click: () => acts.again() }, "Redo");
  const restore = h("button", { type: "button", class: "cl-button", title: "Connect all wires and switch all heads on; the text stays", click: () => acts.reset() }, "Reset edits");
  const share = h("button", { type: "button", class: "cl-button", click: () => acts.copyLink() }, "Copy a link");
  const link = /** @type {HTMLInputElement} */ (h("input", { type: "text", readonly: true, class: "cl-link", hidden: true, "aria-label": "The link to this finding" }));
  const wireList = h("div", { class: "cl-wire-list" });
  const actions = h("div", { class: "cl-actions" }, undo, redo, restore, share);
  const why = h("p", { class: "cl-why", role: "status" });
  const whyNot = h("div", {}, why);
  const finder = buildFinder(id("find"), "Another token as the answer", acts.find, (token) => acts.follow(token.id));
  const right = h("div", { class: "cl-right" }, guesses, finder, live, whyNot, actions, link, fillField, wireList);
  return { guesses, finder, live, why, whyNot, undo, redo, restore, share, link, wireList, right };
}

/** The panels. @param {Id} id @param {Acts} acts */
function buildPanels(id, acts) {
  const tabs = TABS.map((tab) =>
    h("button", { type: "button", role: "tab", id: id(`tab-${tab}`), "aria-controls": id("panel"), click: () => acts.showTab(tab), keydown: (/** @type {KeyboardEvent} */ event) => acts.turn(event) }, TAB_NAMES[/** @type {"parts"} */ (tab)]),
  );
  const panel = h("div", { class: "cl-panel", role: "tabpanel", id: id("panel"), tabindex: "0" });
  const panels = [h("div", { class: "cl-tabs", role: "tablist", "aria-label": "Look closer" }, tabs), panel];
  return { tabs, panel, panels };
}

/**
 * All elements of a lab.
 * @param {Id} id @param {Acts} acts @param {boolean} home  whether it is on the home page
 */
export function buildFrame(id, acts, home) {
  const inputs = buildInputs(id, acts);
  const strip = buildStrip(acts);
  const circuit = buildCircuit();
  const fill = buildFill(id, acts);
  const side = buildSide(id, acts, !home && fill.fillField);
  const { tabs, panel, panels } = buildPanels(id, acts);
  const hint = h("p", { class: "cl-try" });
  const paper = h("p", { class: "cl-paper" });
  const main = h("div", { class: "cl-main" }, circuit.left, side.right);
  // The home page opens with the circuit; what else one can set is folded under it.
  const summary = h("summary", {}, "Your own text, other models, and what each component contributes");
  const contents = home
    ? [hint, main, strip.tokens, h("details", { class: "cl-more" }, summary, inputs.presetRow, inputs.verdict, inputs.rowsField, inputs.settings, fill.fillField, panels)]
    : [inputs.presetRow, inputs.verdict, inputs.rowsField, inputs.settings, strip.tokens, hint, main, ...panels];
  const root = h(
    "div",
    { class: "cl-lab", role: "group", "aria-label": "The lab: a model whose heads and wires can be switched off", keydown: (/** @type {KeyboardEvent} */ event) => acts.key(event) },
    contents,
    paper,
  );
  return { root, hint, paper, tabs, panel, ...inputs, ...strip, ...circuit, ...fill, ...side };
}
