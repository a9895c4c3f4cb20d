/**
 * Under the predictions: why a repeat is not continued, and the search for any token.
 */
import { h, percent, signed } from "./dom.js";
import { word } from "./panels.js";

/** @typedef {import("./interface.js").Reply} Reply */

const SOME = 0.1; // less attention is not worth a claim

/** Whether a reader would expect the repeat to go on: a comma or an `a` alone is no repeat. @param {{same: number}} why @param {string} text */
function isRepeat({ same }, text) {
  return same > 1 || /[\p{L}\p{N}]{2}/u.test(text);
}

/**
 * The failure in sentences; empty where there is none.
 * @param {Reply} reply
 * @returns {(Node | string)[]}
 */
export function reasons({ failure, tokens, at }) {
  if (!failure || !isRepeat(failure, tokens[at].text)) return [];
  const { source, head, weight, added, lead, against, winner } = failure;
  const copied = () => word(tokens[source].text);
  const other = () => word(winner.text);
  const rise = added < 0 ? "lowers" : "raises";
  const looks = !head
    ? []
    : weight < SOME
      ? ["No head attends to this ", copied(), ` with more than ${percent(weight)} (${head}).`]
      : [`${head} attends to this `, copied(), ` with ${percent(weight)} and ${rise} its logit by ${Math.abs(added).toFixed(1)}.`];
  const raised = against.filter(({ value }) => value >= 0.1).slice(0, 3).map(({ name, value }) => `${name} (${signed(value)})`);
  return [
    h("b", {}, "Why not "), copied(), h("b", {}, "?"), " The token ", word(tokens[at].text), ` is also at position ${source - 1}, and `, copied(), " follows it there. ",
    ...looks,
    " The logit of ", other(), ` is higher by ${lead.toFixed(1)}. Above that of `, copied(), `, it is raised most by ${raised.join(", ").replace(/, ([^,]*)$/, " and $1")}.`,
  ];
}

/**
 * A field in which any token of the vocabulary can be found, and the tokens that were found, as buttons.
 * @param {string} id @param {string} label
 * @param {(query: string) => Promise<{found: {id: number, text: string}[], count: number}>} find
 * @param {(token: {id: number, text: string}) => void} choose
 */
export function buildFinder(id, label, find, choose) {
  let asked = 0;
  let shown = 0; // the search whose tokens are listed
  let entered = false; // Enter was pressed before they came
  const list = h("div", { class: "cl-found", role: "group", "aria-label": "Tokens found" });
  const said = h("p", { class: "cl-number", role: "status" });
  const clear = () => {
    shown = ++asked;
    entered = false;
    input.value = "";
    list.replaceChildren();
    said.textContent = "";
  };
  const take = (/** @type {{id: number, text: string}} */ token) => {
    clear();
    input.focus();
    choose(token);
  };
  const search = async () => {
    const now = ++asked;
    entered = false;
    if (!input.value) return clear();
    const { found, count } = await find(input.value);
    if (now !== asked) return;
    list.replaceChildren(...found.map((token) => h("button", { type: "button", class: "cl-button", click: () => take(token) }, word(token.text))));
    said.textContent = !count ? "No token contains this." : count > found.length ? `${count} tokens contain this; the first ${found.length} are listed.` : `${count} ${count === 1 ? "token contains" : "tokens contain"} this.`;
    shown = now;
    if (entered) list.querySelector("button")?.click();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (!input.value || (event.key !== "Enter" && event.key !== "Escape")) return;
    if (event.key === "Escape") clear();
    else if (shown === asked) list.querySelector("button")?.click();
    else entered = true;
    event.preventDefault();
    event.stopPropagation();
  };
  const input = /** @type {HTMLInputElement} */ (h("input", { type: "text", id, class: "cl-query", spellcheck: "false", autocomplete: "off", autocapitalize: "off", input: search, keydown: key }));
  return h("div", { class: "cl-finder" }, h("label", { for: id }, label), input, said, list);
}

/** How a click is called here. @param {string} text */
export function byHand(text) {
  return matchMedia("(pointer: coarse)").matches ? text.replace(/\bClick\b/g, "Tap").replace(/\bclick\b/g, "tap") : text;
}
