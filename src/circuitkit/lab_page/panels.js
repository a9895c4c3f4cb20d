/**
 * The panels under the circuit: the logit in parts, the score in parts, the words of a head, the Python.
 */
import { bars } from "./draw.js";
import { h, percent, signed, visible } from "./dom.js";

/** @typedef {import("./interface.js").Reply} Reply */
/** @typedef {import("./state.js").State} State */
/** @typedef {{id: number, text: string, value: number}} Word */

/** A token in a sentence. @param {string} text */
export function word(text) {
  return h("code", { class: "cl-word" }, visible(text));
}

/**
 * Chapter 1: the logit of the chosen token, above the mean logit, as a sum over parts of the stream.
 * @param {Reply} reply @param {boolean} changed
 */
export function partsPanel(reply, changed) {
  const { before, after } = reply.parts;
  const rows = before.map(({ name, value }, i) => ({ name, before: value, after: after[i].value }));
  const sum = { name: "sum", before: 0, after: 0 };
  for (const row of rows) {
    sum.before += row.before;
    sum.after += row.after;
  }
  return [
    h("p", {}, "Each bar is the contribution of one component to the logit of ", word(reply.answer.text), ", compared with the mean logit of the vocabulary. The contributions add up to the logit exactly (chapter 1)."),
    bars([...rows, sum], changed ? "Pale bars: the intact model. Full bars: the model as you edited it." : "Logits above the mean"),
  ];
}

/**
 * Chapter 3: one attention score as a table, query side by key side.
 * @param {{names: string[], table: number[][]}} score @param {State} state @param {{token: string, source: string, choose: HTMLElement}} of
 */
export function scorePanel({ names, table }, state, { token, source, choose }) {
  const most = Math.max(1, ...table.flat().map(Math.abs));
  const total = table.flat().reduce((sum, value) => sum + value, 0);
  const cell = (/** @type {number} */ value) => {
    const made = h("td", { class: `cl-cell cl-${value < 0 ? "down" : "up"}` }, h("span", {}, signed(value)));
    made.style.setProperty("--share", String(Math.round((Math.abs(value) / most) * 80) / 100));
    return made;
  };
  return [
    h("p", {}, `The attention score of ${state.head} from `, word(token), " to ", choose, ` is ${signed(total)}, and it is the sum of this table (chapter 3). Each row is a component that contributes to the query at `, word(token), ". Each column is a component that contributes to the key at ", word(source), "."),
    h(
      "div",
      { class: "cl-wide", tabindex: "0", role: "group", "aria-label": "The score in parts, a table that scrolls" },
      h(
        "table",
        { class: "cl-score" },
        h("thead", {}, h("tr", {}, h("td", {}), names.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, table.map((row, i) => h("tr", {}, h("th", { scope: "row" }, names[i]), row.map(cell)))),
      ),
    ),
  ];
}

/**
 * Chapter 2: what a head looks for and what it writes, from its weights alone.
 * @param {{looksFor: Word[], raises: Word[], lowers: Word[]}} words @param {State} state
 * @param {{token: string, source: string, chooseSource: HTMLElement, chooseVia: HTMLElement | null}} of
 */
export function wordsPanel({ looksFor, raises, lowers }, state, { token, chooseSource, chooseVia }) {
  const list = (/** @type {Word[]} */ words) =>
    h("ol", { class: "cl-list" }, words.map(({ text, value }) => h("li", {}, word(text), " ", h("span", { class: "cl-number" }, signed(value)))));
  return [
    h("p", {}, `These lists are computed from the weights of ${state.head} alone, without a text (chapter 2).`),
    h(
      "div",
      { class: "cl-words" },
      h("section", {}, h("p", { class: "cl-heading" }, "Where to look (QK)"), h("p", {}, "At the token ", word(token), chooseVia ? ", it attends most to keys made from " : ", it attends most to:", chooseVia, chooseVia ? ":" : ""), list(looksFor)),
      h("section", {}, h("p", { class: "cl-heading" }, "What to write (OV)"), h("p", {}, "When it attends to ", chooseSource, ", it raises the logits of:"), list(raises)),
      h("section", {}, h("p", { class: "cl-heading" }, "What it lowers (OV)"), h("p", {}, "For the same token, it lowers the logits of:"), list(lowers)),
    ),
  ];
}

/**
 * @param {ReturnType<typeof import("./python.js").pythonFor>} code @param {(text: string) => void} copy
 */
export function pythonPanel({ first, lines, parts, score, words }, copy) {
  const whole = [...first, "", ...lines, "", ...parts, ...score, ...words].join("\n");
  return [
    h("p", {}, "These lines compute the same numbers with the library: first the logits, then the contents of the panels."),
    h("pre", { class: "cl-code", tabindex: "0", role: "region", "aria-label": "Python" }, h("code", {}, whole)),
    h("button", { type: "button", class: "cl-button", click: () => copy(whole) }, "Copy the Python"),
  ];
}

/**
 * The most probable next tokens before and after; a reader can choose one.
 * @param {Reply} reply @param {boolean} changed @param {boolean} patched @param {(token: number) => void} follow
 */
export function guessTable(reply, changed, patched, follow) {
  const two = reply.other?.fits ?? false;
  const rows = reply.guesses.slice(0, changed || two ? 8 : 5);
  if (!rows.some(({ id }) => id === reply.answer.id)) rows.push(reply.answer);
  const bar = (/** @type {{before: number, after: number}} */ guess) => {
    const made = h("span", { class: "cl-chance", "aria-hidden": "true" }, h("span", { class: "cl-was" }), h("span", { class: "cl-is" }));
    made.style.setProperty("--was", String(guess.before));
    made.style.setProperty("--is", String(guess.after));
    return made;
  };
  return h(
    "table",
    { class: `cl-guesses${two ? " cl-two-texts" : ""}` },
    h("caption", {}, "Next token after ", word(reply.tokens[reply.at].text)),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"), h("td", {}), h("th", { scope: "col" }, two ? "first text" : "intact"), changed && h("th", { scope: "col" }, patched ? "patched" : "edited"), two && h("th", { scope: "col" }, "second text"))),
    h(
      "tbody",
      {},
      rows.map((guess) =>
        h(
          "tr",
          { class: guess.id === reply.answer.id ? "cl-followed" : "" },
          h(
            "th",
            { scope: "row" },
            h("button", { type: "button", "aria-pressed": String(guess.id === reply.answer.id), title: "Show the numbers of this token", "data-key": `follow ${guess.id}`, click: () => follow(guess.id) }, word(guess.text)),
          ),
          h("td", {}, bar(guess)),
          h("td", {}, percent(guess.before)),
          changed && h("td", {}, percent(guess.after)),
          two && h("td", {}, percent(guess.other ?? 0)),
        ),
      ),
    ),
  );
}
