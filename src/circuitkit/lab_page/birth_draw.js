/**
 * The pictures of "Born in your tab": curves over the training steps, attention patterns, and births over the share of repeats.
 */
import { s } from "./dom.js";
import { STEPS } from "./training_rows.js";

/** @typedef {import("./birth_worker.js").Saved} Saved */
/** @typedef {import("./training.js").Measures} Measures */
/** @typedef {{x: number, y: number, text: string, kind: string}} Label */

/** What the curves are called, for each measure of the upper panel. @type {[keyof Measures, string][]} */
const CURVES = [["previous", "previous token"], ["prefix", "prefix matching"], ["accuracy", "accuracy"]];
export const MARGIN = { left: 40, right: 112 };
const UPPER = { top: 22, bottom: 242 };
const LOWER = { top: 274, bottom: 346 };
const TALL = 382;
const WORST = 4.5; // nats; guessing among 63 tokens costs 4.1

/** @param {number} wide */
const across = (wide) => (/** @type {number} */ step) => MARGIN.left + (step / STEPS) * (wide - MARGIN.left - MARGIN.right);
const up = (/** @type {number} */ share) => UPPER.bottom - share * (UPPER.bottom - UPPER.top);
const upLoss = (/** @type {number} */ loss) => LOWER.bottom - (Math.min(loss, WORST) / WORST) * (LOWER.bottom - LOWER.top);

/** A line through points. @param {number[][]} points @param {string} kind */
function line(points, kind) {
  return s("path", { class: `cb-line cb-${kind}`, d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") });
}

/** @param {number} x @param {number} y @param {string} text @param {string} [anchor] @param {string} [kind] */
function written(x, y, text, anchor = "start", kind = "") {
  return s("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor, class: `cb-text ${kind}` }, text);
}

/** The axes. @param {number} wide */
function axes(wide) {
  const x = across(wide);
  const [left, right] = [x(0), x(STEPS)];
  const rule = (/** @type {number} */ y, /** @type {string} */ name) => [
    s("line", { x1: left, x2: right, y1: y, y2: y, class: "cb-rule" }),
    written(left - 6, y + 4, name, "end"),
  ];
  return [
    ...[0, 0.5, 1].flatMap((share) => rule(up(share), `${share * 100}%`)),
    ...[0, 2, 4].flatMap((loss) => rule(upLoss(loss), String(loss))),
    written(left, LOWER.top - 5, "loss (nats)", "start", "cb-loss"),
    ...[0, 60, 120, 180, 240].map((step) => written(x(step), LOWER.bottom + 15, String(step), "middle")),
    written((left + right) / 2, LOWER.bottom + 31, "training step", "middle"),
  ];
}

/** Labels that would overlap are moved apart. @param {Label[]} labels */
function apart(labels) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  sorted.forEach((label, i) => {
    if (i) label.y = Math.max(label.y, sorted[i - 1].y + 15);
  });
  const over = Math.max(0, (sorted.at(-1)?.y ?? 0) - UPPER.bottom);
  return sorted.map(({ x, y, text, kind }) => written(x, y - over + 4, text, "start", `cb-${kind}`));
}

/**
 * Accuracy and head scores above, the loss below.
 * @param {SVGElement} svg @param {number} wide
 * @param {{saved: Saved[], shown: number, birth: number | undefined, before: Saved[], layers: number}} run  `shown`: which saved step; `before`: the run before this one
 */
export function curves(svg, wide, { saved, shown, birth, before, layers }) {
  const x = across(wide);
  const found = axes(wide);
  if (before.length) found.push(line(before.map(({ step, measures }) => [x(step), up(measures.accuracy)]), "before"));
  if (birth !== undefined)
    found.push(
      s("line", { x1: x(birth), x2: x(birth), y1: UPPER.top, y2: LOWER.bottom, class: "cb-birth" }),
      written(x(birth), UPPER.top - 8, `the head forms: step ${birth}`, "middle", "cb-prefix"),
    );
  const last = saved.at(-1);
  const drawn = CURVES.filter(([name]) => layers === 2 || name !== "previous");
  for (const [name] of drawn) found.push(line(saved.map(({ step, measures }) => [x(step), up(measures[name])]), name));
  found.push(line(saved.map(({ step, measures }) => [x(step), upLoss(measures.loss)]), "loss"));
  /** @type {Label[]} */
  const labels = last ? drawn.map(([name, text]) => ({ x: x(last.step) + 7, y: up(last.measures[name]), text, kind: name })) : [];
  const old = before.at(-1);
  if (old && (!last || last.step === STEPS)) labels.push({ x: x(old.step) + 7, y: up(old.measures.accuracy), text: "run before", kind: "before" });
  found.push(...apart(labels));
  const now = saved[shown];
  if (now) {
    const at = x(now.step);
    found.push(s("line", { x1: at, x2: at, y1: UPPER.top, y2: LOWER.bottom, class: "cb-now" }));
    for (const [name] of drawn) found.push(s("circle", { cx: at, cy: up(now.measures[name]), r: 4, class: `cb-dot cb-${name}` }));
    found.push(s("circle", { cx: at, cy: upLoss(now.measures.loss), r: 4, class: "cb-dot cb-loss" }));
  }
  resize(svg, wide, TALL);
  svg.replaceChildren(...found);
}

/** @param {SVGElement} svg @param {number} wide @param {number} tall */
function resize(svg, wide, tall) {
  svg.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  svg.setAttribute("width", String(wide));
  svg.setAttribute("height", String(tall));
}

/**
 * A pattern as a square: each row is a token, and each column a token that it may attend to.
 * @param {HTMLCanvasElement} canvas @param {Float32Array} pattern @param {number} n @param {string} colour  six hexadecimal digits
 */
export function map(canvas, pattern, n, colour) {
  canvas.width = canvas.height = n;
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const image = brush.createImageData(n, n);
  const rgb = [0, 2, 4].map((i) => parseInt(colour.slice(i, i + 2), 16));
  for (let i = 0; i < n * n; i++) image.data.set([...rgb, Math.round(Math.sqrt(pattern[i]) * 255)], i * 4);
  brush.putImageData(image, 0, 0);
}

const CHART = { left: 40, right: 14, top: 20, bottom: 196, never: 222, tall: 268 };

/**
 * The step at which the head forms, over the share of rows with repeats.
 * @param {SVGElement} svg @param {number} wide
 * @param {Record<string, (number | null)[]>} births  in percent: the steps of the stored runs; null: not within the run
 * @param {{share: number, birth: number | undefined}[]} own  runs of the reader
 */
export function spread(svg, wide, births, own) {
  const x = (/** @type {number} */ share) => CHART.left + 8 + share * (wide - CHART.left - CHART.right - 16);
  const y = (/** @type {number | null | undefined} */ step) => (step == null ? CHART.never : CHART.bottom - (step / STEPS) * (CHART.bottom - CHART.top));
  const found = [0, 60, 120, 180, 240].flatMap((step) => [
    s("line", { x1: CHART.left, x2: wide - CHART.right, y1: y(step), y2: y(step), class: "cb-rule" }),
    written(CHART.left - 6, y(step) + 4, String(step), "end"),
  ]);
  found.push(s("rect", { x: CHART.left, y: CHART.never - 10, width: wide - CHART.left - CHART.right, height: 20, rx: 4, class: "cb-never" }));
  found.push(written(CHART.left - 6, CHART.never + 4, "never", "end"), written(CHART.left, CHART.top - 8, "step at which the head forms"));
  for (const percent of [0, 25, 50, 75, 100]) found.push(written(x(percent / 100), CHART.never + 26, `${percent}%`, "middle"));
  found.push(written((CHART.left + wide - CHART.right) / 2, CHART.tall - 4, "rows with repeats", "middle"));
  const apart = Math.min(1.6, wide / 420);
  for (const [percent, steps] of Object.entries(births))
    steps.forEach((step, i) => found.push(s("circle", { cx: (x(Number(percent) / 100) + (i - (steps.length - 1) / 2) * apart).toFixed(1), cy: y(step).toFixed(1), r: 3, class: "cb-stored" })));
  for (const { share, birth } of own) found.push(s("circle", { cx: x(share), cy: y(birth), r: 6.5, class: "cb-own" }));
  const last = own.at(-1);
  if (last) found.push(written(x(last.share) + (last.share > 0.5 ? -12 : 12), y(last.birth) + (last.birth === undefined ? 4 : 20), "your run", last.share > 0.5 ? "end" : "start", "cb-yours"));
  resize(svg, wide, CHART.tall);
  svg.replaceChildren(...found);
}
