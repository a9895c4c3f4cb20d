/**
 * After the game: what the circuit was, in a picture and two sentences, and the result as text.
 */
import { s } from "./dom.js";
import { wordOf } from "./planted.js";
import { SQUARES } from "./puzzle.js";

/** @typedef {import("./planted.js").Planted} Planted */
/** @typedef {import("./puzzle.js").Square} Square */
/** @typedef {{from: number, to: number, above: boolean}} Step  a head attends from one position to another */

/** How a square looks on the page, in a shared text, and what it means. @type {Record<Square, [string, string, string]>} */
export const SIGNS = {
  nothing: ["–", "⬜", "nothing"],
  part: ["◐", "🔶", "a part"],
  wire: ["✂", "✂️", "the wire"],
  wrong: ["✕", "❌", "wrong, there is a circuit"],
  none: ["∅", "✅", "right, there is no circuit"],
};

/** @param {string} day @param {Square[]} squares @param {boolean} won @param {string} address */
export function shared(day, squares, won, address) {
  return `The circuit of the day, ${day}: ${won ? squares.length : "X"}/${SQUARES}\n${squares.map((one) => SIGNS[one][1]).join("")}\n${address}`;
}

/** The names of heads with a role. @param {Planted} planted @param {number} layer @param {string} does */
function named(planted, layer, does) {
  return planted.roles[layer].flatMap((role, head) => (role.does === does ? [`L${layer}H${head}`] : []));
}

/** The first place of the letter that the model completes. @param {Planted} planted */
function earlier({ story, source }) {
  return story === "before" ? source + 1 : source - 1;
}

/** What the circuit was. @param {Planted} planted @returns {string} */
export function explained(planted) {
  const { story, tokens, answer, kind } = planted;
  const [A, D] = [wordOf(answer), wordOf(tokens[earlier(planted)])];
  if (kind === "empty") return withoutCircuit(planted, A, D);
  const [writers, readers] = [named(planted, 0, "write"), named(planted, 1, "read")];
  const [write, read] = [writers, readers].map((names) => names.join(" and "));
  const [twoWrite, twoRead] = [writers.length > 1, readers.length > 1];
  const look = `${write} ${twoWrite ? "both attend" : "attends"} one token back`;
  const reserve = twoRead ? ", so either of them is enough" : "";
  if (story === "asked")
    return `${look}, so the notes at ? and at ${A} both name ${D}${twoWrite ? ", and either head is enough" : ""}. ${read} ${twoRead ? "both compare" : "compares"} the note in the query (Q) with the notes in the keys (K) and ${twoRead ? "copy" : "copies"} ${A}${reserve}; a cut on one side is as good as a cut on the other.`;
  const [place, name] = story === "follow" ? [A, D] : [`the first ${D}`, A];
  const first = `${look} and ${twoWrite ? "write" : "writes"} at ${place} that ${name} came before it${twoWrite ? ", so either of them is enough" : ""}.`;
  if (story === "follow") return `${first} At the last ${D}, ${read} ${twoRead ? "both find" : "finds"} this note by the keys (K) and ${twoRead ? "copy" : "copies"} ${A}${reserve}.`;
  return `${first} At the last ${D}, ${read} ${twoRead ? "both attend" : "attends"} to the first ${D} without help, and the values (V) bring the note from there${reserve}.`;
}

/** Why the answer needs no wire. @param {Planted} planted @param {string} A @param {string} D */
function withoutCircuit(planted, A, D) {
  const { reason, tokens } = planted;
  const last = wordOf(tokens[tokens.length - 1]);
  const by = [0, 1].flatMap((layer) => named(planted, layer, reason))[0];
  if (reason === "bigram") return `After ${last} this model predicts ${A} whatever came before, because its embedding and its unembedding store the pair. The heads that attend to the first ${D} write nothing that changes the answer.`;
  if (reason === "offset") return `${by} attends ${tokens.length - 1 - planted.source} tokens back from every token and copies what is there, and today this is ${A}. It uses positions only, so it needs no other head, and the repeated ${D} plays no part.`;
  return `${by} attends to ${A} from every later token and copies it, whatever the last token is. It needs no other head, and the repeated ${D} plays no part.`;
}

/** Which heads of the circuit attend where. @param {Planted} planted @returns {Step[]} */
function steps(planted) {
  const { story, source, kind, reason, tokens } = planted;
  const last = tokens.length - 1;
  if (reason === "bigram") return [];
  if (kind === "empty") return [{ from: last, to: source, above: true }];
  const first = earlier(planted);
  const noted = story === "before" ? first : source;
  return [
    { from: noted, to: noted - 1, above: false },
    ...(story === "asked" ? [{ from: last, to: last - 1, above: false }] : []),
    { from: last, to: noted, above: true },
  ];
}

/** The text with the heads of the circuit as arcs along which information moves: layer 1 above, layer 0 below. @param {Planted} planted */
export function picture(planted) {
  const { tokens, answer, source, reason, kind } = planted;
  const [wide, step, line] = [480, 36, 96];
  const x = (/** @type {number} */ i) => 24 + i * step;
  const drawn = steps(planted).map(({ from, to, above }) => {
    const layer = above && named(planted, 0, reason).length === 0 ? 1 : 0;
    const heads = kind === "empty" ? named(planted, layer, reason) : named(planted, layer, layer ? "read" : "write");
    const y = above ? line - 18 : line + 16;
    const rise = above ? Math.max(14, y - 12 - Math.abs(from - to) * 7) : y + 24;
    const middle = (x(from) + x(to)) / 2;
    return [
      s("path", { d: `M${x(to)} ${y}C${x(to)} ${rise},${x(from)} ${rise},${x(from)} ${y}`, class: `cd-arc cd-${above ? "reads" : "writes"}`, "marker-end": "url(#cd-tip)" }),
      s("text", { x: middle, y: above ? Math.max(11, y - (y - rise) * 0.75 - 5) : y + 34, "text-anchor": "middle", class: "cd-by" }, heads.join(", ")),
    ];
  });
  const tip = s("marker", { id: "cd-tip", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 4.5, markerHeight: 4.5, orient: "auto-start-reverse" }, s("path", { d: "M0 0 8 4 0 8z", class: "cd-tip" }));
  const letters = tokens.map((token, i) => s("text", { x: x(i), y: line + 5, "text-anchor": "middle", class: `cd-letter${i === source || i === tokens.length - 1 || i === earlier(planted) ? " cd-strong" : ""}` }, wordOf(token).replace("start", "•")));
  const end = s("text", { x: wide - 24, y: line + 5, "text-anchor": "middle", class: "cd-letter cd-answer" }, `→ ${wordOf(answer)}`);
  const told = steps(planted).map(({ from, to, above }) => `${above ? "the reader" : "the writer"} moves information from ${wordOf(tokens[to])} to ${wordOf(tokens[from])}`);
  return s("svg", { viewBox: `0 0 ${wide} 160`, class: "cd-picture", role: "img", "aria-label": `The text with arcs: ${told.join(", ") || "no head matters, the last token alone leads to the answer"}.` }, s("defs", {}, tip), ...drawn.flat(), ...letters, end);
}
