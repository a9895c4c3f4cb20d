/**
 * One head from near: its attention pattern with the tokens, and its words.
 */
import { h, percent, s, visible } from "./dom.js";
import { mainSource, thumbnail } from "./draw.js";
import { isIn, parseCut } from "./names.js";
import { word, wordsPanel } from "./panels.js";
import { buildFinder, byHand } from "./reasons.js";

/** @typedef {import("./session.js").Session} Session */
/** @typedef {{id: number, text: string}} Token */

const LABEL = 84; // pixels for the tokens at the sides
const LONGEST_LABEL = 11;

/** @param {string} text */
function short(text) {
  const shown = visible(text);
  return shown.length > LONGEST_LABEL ? `${shown.slice(0, LONGEST_LABEL - 1)}…` : shown;
}

/**
 * Open the dialog; where the focus was, it returns.
 * @param {HTMLElement} root @param {Session} session @param {string} name @param {(part: string) => string} id
 */
export function openCloseup(root, session, name, id) {
  const reply = session.reply;
  const cut = parseCut(name);
  // A card can be of the model before this one.
  if (!reply || !cut || !session.replied || !isIn(name, reply)) return;
  const model = session.file(session.replied);
  const { tokens, at, patterns } = reply;
  const n = tokens.length;
  const weight = (/** @type {number} */ row, /** @type {number} */ column) => patterns[cut.layer][(cut.head * n + row) * n + column];
  let [row, column] = [at, mainSource(patterns[cut.layer].subarray((cut.head * n + at) * n, (cut.head * n + at) * n + at + 1))];
  const side = n <= 30 ? 18 : n <= 80 ? 14 : 11;
  const readout = h("p", { class: "cl-readout", role: "status" });
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "cl-map", "aria-hidden": "true" }));
  thumbnail(canvas, patterns[cut.layer], cut.head, n, -1, n);
  const frame = s("rect", { class: "cl-cursor", width: side, height: side });
  const labels = tokens.flatMap(({ text }, i) => {
    const middle = LABEL + (i + 0.5) * side;
    return [
      s("text", { x: LABEL - 4, y: middle + 4, "text-anchor": "end" }, short(text)),
      s("text", { x: 0, y: 0, transform: `translate(${middle + 4} ${LABEL - 4}) rotate(-90)` }, short(text)),
    ];
  });
  const size = LABEL + n * side;
  const picture = s("svg", { width: size + 4, height: size + 4, "aria-hidden": "true" }, labels, frame);
  canvas.style.cssText = `left:${LABEL}px;top:${LABEL}px;width:${n * side}px;height:${n * side}px`;

  const words = h("div", { class: "cl-panel" });
  let asked = 0;
  const show = async (/** @type {Token} */ token, /** @type {Token} */ source, back = 0) => {
    const now = ++asked;
    const via = session.writer();
    const found = await session.engine.words({ model, head: name, token: token.id, source: source.id, via, back });
    if (now !== asked) return;
    const chooseVia = cut.layer ? h("span", {}, via ? `the output of ${via}` : "the token itself") : null;
    words.replaceChildren(...wordsPanel(found, { ...session.state, head: name }, { token: token.text, source: source.text, chooseSource: word(source.text), chooseVia }));
  };
  const move = (/** @type {number} */ toRow, /** @type {number} */ toColumn, seen = true) => {
    row = Math.max(0, Math.min(n - 1, toRow));
    column = Math.max(0, Math.min(row, toColumn));
    frame.setAttribute("x", String(LABEL + column * side));
    frame.setAttribute("y", String(LABEL + row * side));
    readout.replaceChildren("From ", word(tokens[row].text), ` (position ${row}), ${name} attends to `, word(tokens[column].text), ` (position ${column}) with `, h("b", {}, percent(weight(row, column))), ".");
    if (seen) frame.scrollIntoView({ block: "nearest", inline: "nearest" });
    show(tokens[row], tokens[column], row - column);
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(row + step[0], column + step[1]);
  };
  const click = (/** @type {MouseEvent} */ event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const [x, y] = [Math.floor((event.clientX - left) / side), Math.floor((event.clientY - top) / side)];
    if (y >= 0 && x >= 0) move(y, x, false);
  };
  const field = h("div", { class: "cl-big", tabindex: "0", role: "group", "aria-label": `Attention pattern of ${name}: arrow keys move from cell to cell`, keydown: key, click }, h("div", { class: "cl-big-inside" }, canvas, picture));
  const finder = buildFinder(id("token"), "Any token, attended from and attended to", (query) => session.engine.find({ model, query }), (token) => show(token, token));
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog",
      { class: "cl-dialog", "aria-labelledby": id("head"), close: () => dialog.remove(), keydown: (/** @type {Event} */ event) => event.stopPropagation() },
      h("div", { class: "cl-dialog-top" }, h("p", { id: id("head"), class: "cl-heading", role: "heading", "aria-level": "2" }, `Head ${name}`), h("button", { type: "button", class: "cl-button", click: () => dialog.close() }, "Close")),
      h("p", {}, byHand("Each row is a token that attends, and each column is a token that it attends to. The shade is the square root of the weight. Click a cell or use the arrow keys: the words below are those of its two tokens.")),
      field,
      readout,
      finder,
      words,
    )
  );
  root.append(dialog);
  dialog.showModal();
  field.focus();
  move(row, column);
}
