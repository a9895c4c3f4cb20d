/**
 * The pictures: attention as thumbnails and arcs, and the stream with the heads that read from it and write to it.
 */
import { allNames, headName, INPUTS, parseCut } from "./names.js";
import { h, s } from "./dom.js";

/** @typedef {import("./interface.js").Reply} Reply */

/** How wide a wire or a line with this effect is. @param {number} value */
export function width(value) {
  return Math.min(14, 0.6 + 0.95 * Math.abs(value));
}

/** Whether it raises a logit, lowers it, or does neither. @param {number} value */
export function tone(value) {
  return Math.abs(value) < 0.25 ? "none" : value > 0 ? "up" : "down";
}

const MOST_WIRES = 1200;
const SIDE = 64; // pixels of a small pattern, fewer than the smallest screen gives it

/** Where a head looks most. The start token means little, so it only counts where the head looks nowhere else. @param {Float32Array} row */
export function mainSource(row) {
  const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a]);
  const besides = order.find((i) => i > 0);
  return besides !== undefined && row[besides] > 0.1 ? besides : order[0];
}

/**
 * One pattern: row by row where each position looks; the chosen row is framed.
 * @param {HTMLCanvasElement} canvas @param {Float32Array} pattern @param {number} head @param {number} n @param {number} at
 * @param {number} [side]  in pixels of the picture
 */
export function thumbnail(canvas, pattern, head, n, at, side = Math.min(n, SIDE)) {
  if (canvas.width !== side || canvas.height !== side) [canvas.width, canvas.height] = [side, side];
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const image = brush.createImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer);
  const blue = (178 << 16) | (114 << 8);
  for (let i = 0; i < n; i++)
    for (let j = 0; j <= i; j++) {
      const share = Math.sqrt(pattern[(head * n + i) * n + j]);
      const frame = i === at && n > 2 ? 45 : 0;
      // Where several tokens share a pixel, it shows the largest weight.
      const place = Math.floor((i * side) / n) * side + Math.floor((j * side) / n);
      const seen = Math.min(255, Math.round(share * 255) + frame);
      if (seen >= pixels[place] >>> 24) pixels[place] = (seen << 24) | blue;
    }
  brush.putImageData(image, 0, 0);
}

/**
 * Arcs from the chosen token to what the heads attend to: the last layer above the tokens, the one before it below.
 * @param {SVGElement} above @param {SVGElement} below @param {number[]} places  middles of the tokens
 * @param {Reply} reply @param {string} chosen @param {string[]} out  heads that are taken out
 */
export function arcs(above, below, places, reply, chosen, out) {
  const { patterns, at, nHeads, nLayers } = reply;
  const n = reply.tokens.length;
  const tall = 66;
  above.replaceChildren();
  below.replaceChildren();
  patterns.forEach((pattern, layer) => {
    const up = layer === nLayers - 1;
    const order = Array.from({ length: nHeads }, (_, head) => head).sort(
      (a, b) => Number(headName(layer, a) === chosen) - Number(headName(layer, b) === chosen),
    );
    for (const head of order) {
      const name = headName(layer, head);
      if (out.includes(name)) continue;
      for (let source = 0; source <= at; source++) {
        const share = pattern[(head * n + at) * n + source];
        const picked = name === chosen;
        if (share < (picked ? 0.02 : 0.1)) continue;
        const [x, y] = [places[source], places[at]];
        const rise = source === at ? 12 : Math.min(tall - 12, 16 + Math.abs(y - x) * 0.16);
        const top = up ? tall - rise * 1.33 : rise * 1.33;
        const foot = up ? tall : 0;
        const path =
          source === at
            ? `M${x - 5} ${foot}C${x - 9} ${top},${x + 9} ${top},${x + 5} ${foot}`
            : `M${y} ${foot}C${y + (x - y) * 0.12} ${top},${x + (y - x) * 0.12} ${top},${x} ${foot}`;
        const side = up ? above : below;
        side.append(s("path", { d: path, class: `cl-arc${picked ? " cl-picked" : ""}`, "stroke-width": (0.5 + share * 6).toFixed(2) }));
        if (picked && share >= 0.15) {
          const label = s("text", { x, y: up ? tall - 3 : 12, class: "cl-share", "text-anchor": "middle" }, `${Math.round(share * 100)}`);
          side.append(label);
        }
      }
    }
  });
}

/**
 * @typedef {object} Circuit  the parts of the drawing that change
 * @property {HTMLElement} box
 * @property {SVGElement} wires
 * @property {Map<string, HTMLElement>} cards
 */

/** The position of an element inside the box. @param {HTMLElement} box @param {HTMLElement | undefined} element */
function place(box, element) {
  const [outer, inner] = [box.getBoundingClientRect(), (element ?? box).getBoundingClientRect()];
  return { left: inner.left - outer.left, top: inner.top - outer.top, wide: inner.width, tall: inner.height };
}

/** A pair of scissors in a field of 16 by 16. */
function scissors() {
  return s(
    "g",
    { class: "cl-scissors" },
    s("circle", { cx: 4.2, cy: 12.2, r: 2.2 }),
    s("circle", { cx: 11.8, cy: 12.2, r: 2.2 }),
    s("path", { d: "M5.4 10.3 11.6 1.6M10.6 10.3 4.4 1.6" }),
  );
}

/** The mark of the wire to cut, as it appears in a sentence. */
export function mark() {
  return s("svg", { viewBox: "-4 -4 24 24", class: "cl-mark cl-inline", "aria-hidden": "true" }, s("circle", { cx: 8, cy: 8, r: 12, class: "cl-disc" }), scissors());
}

/** How far from a wire a click still cuts it, in pixels: a finger is wider than the tip of a mouse pointer. */
const REACH = { mouse: 12, touch: 24 };
/** The same for a wire without an effect, of which there are many: it is only cut where no other wire is near. */
const FAINT_REACH = { mouse: 5, touch: 10 };
/** Half the size of a control for a finger: so near to the scissors, a click cuts their wire and no other. */
const BADGE = 22;

/**
 * The stream as a bus, what heads read and write, and the wires between them.
 * @param {Circuit} circuit @param {Reply} reply @param {Record<string, number>} effects @param {string[]} cuts
 * @param {string} marked  the wire that carries the scissors; "" for none
 * @param {(name: string) => void} cut @param {(name: string | null) => void} point
 */
export function wires({ box, wires: svg, cards }, reply, effects, cuts, marked, cut, point) {
  const [wide, tall] = [box.clientWidth, box.clientHeight];
  /** @type {Record<"bus" | "faint" | "strong" | "labels", SVGElement[]>} */
  const { bus, faint, strong, labels } = { bus: [], faint: [], strong: [], labels: [] };
  const stream = 26;
  bus.push(s("rect", { x: 0, y: 0, width: stream, height: tall, rx: 8, class: "cl-stream" }));
  const band = (/** @type {number} */ from, /** @type {number} */ to) =>
    bus.push(s("rect", { x: stream / 2, y: from, width: wide - stream / 2, height: to - from, rx: 8, class: "cl-stream" }));
  const rows = Array.from({ length: reply.nLayers }, (_, layer) => place(box, cards.get(headName(layer, 0))));
  const edges = rows.map(({ top, tall: high }) => [top, top + high]);
  // From below: the stream before the first layer, between layers, and after the last.
  let floor = tall;
  for (const [top, bottom] of edges) {
    band(bottom + 12, floor);
    floor = top - 12;
  }
  band(0, floor);
  const partOf = new Map(reply.parts.after.map(({ name, value }) => [name, value]));
  for (const [name, card] of cards) {
    const { left, top, wide: broad, tall: high } = place(box, card);
    const layer = parseCut(name)?.layer ?? 0;
    const middle = left + broad / 2;
    const out = cuts.includes(name);
    const last = layer === reply.nLayers - 1;
    const value = last ? (partOf.get(name) ?? 0) : 0;
    const line = s("line", {
      x1: middle, x2: middle, y1: top, y2: top - 13,
      class: `cl-line cl-${out ? "out" : last && tone(value) === "none" ? "none" : "plain"}`,
      "stroke-width": last && !out ? Math.max(2, width(value)).toFixed(2) : 2,
    });
    bus.push(line);
    INPUTS.forEach((input, i) => {
      const x = port(left, broad, i);
      bus.push(s("line", { x1: x, x2: x, y1: top + high, y2: top + high + 13, class: `cl-line cl-${input}`, "stroke-width": 2 }));
      labels.push(
        s("rect", { x: x - 7, y: top + high + 12, width: 14, height: 15, rx: 3, class: `cl-box cl-${input}` }),
        s("text", { x, y: top + high + 23.5, class: "cl-port", "text-anchor": "middle" }, input),
      );
    });
  }
  if (reply.nLayers > 1) {
    /** @type {{name: string, half: number, points: number[][], faint?: boolean}[]} */
    const targets = [];
    // A wire that has not been measured yet is grey. Of very many, the strongest are drawn, and those that are cut.
    const weight = (/** @type {string} */ name) => (cuts.includes(name) ? Infinity : Math.abs(effects[name] ?? 0));
    const names = allNames(reply.nLayers, reply.nHeads).filter((name) => name.includes(">"));
    names.sort((a, b) => (weight(a) === weight(b) ? 0 : weight(a) - weight(b))).splice(0, Math.max(0, names.length - MOST_WIRES));
    const places = new Map([...cards].map(([name, card]) => [name, place(box, card)]));
    for (const name of names) {
      const [from, entered] = name.split("->");
      const [to, input] = entered.split(".");
      const [writer, target] = [from, to].map((head) => places.get(head) ?? place(box, undefined));
      const x0 = writer.left + writer.wide / 2;
      const x1 = port(target.left, target.wide, INPUTS.indexOf(input));
      const ends = [writer.top - 13, target.top + target.tall + 28];
      const bend = (ends[0] - ends[1]) * 0.5;
      const d = `M${x0} ${ends[0]}C${x0} ${ends[0] - bend},${x1} ${ends[1] + bend},${x1} ${ends[1]}`;
      const isCut = cuts.includes(name);
      const value = effects[name] ?? 0;
      const kind = isCut ? "cut" : cuts.includes(from) || cuts.includes(to) ? "none" : tone(value);
      const looks = kind === "none" || kind === "cut" ? kind : `${input}${kind === "down" ? " cl-lowers" : ""}`;
      const line = s("path", { d, class: `cl-wire cl-${looks}`, "stroke-width": isCut ? 2 : width(kind === "none" ? 0 : value).toFixed(2), "data-wire": name, ...(isCut ? { pathLength: 100 } : {}) });
      const points = Array.from({ length: 65 }, (_, i) => along(i / 64, [x0, x0, x1, x1], [ends[0], ends[0] - bend, ends[1] + bend, ends[1]]));
      if (kind === "none") {
        faint.push(line);
        targets.push({ name, half: 0, points, faint: true });
        continue;
      }
      // A rim in the colour of the stream keeps wires apart where they run together.
      strong.push(s("path", { d, class: "cl-rim", "stroke-width": (width(value) + 2).toFixed(2) }), line);
      const middle = [(x0 + x1) / 2, (ends[0] + ends[1]) / 2];
      if (isCut) strong.push(s("text", { x: middle[0], y: middle[1] + 5, class: "cl-cross", "text-anchor": "middle" }, "✕"));
      targets.push({ name, half: width(value) / 2, points });
      if (name === marked) {
        labels.push(s("g", { class: "cl-mark", transform: `translate(${middle[0] - 8} ${middle[1] - 8})` }, s("circle", { cx: 8, cy: 8, r: 15, class: "cl-disc" }), scissors()));
        targets.push({ name, half: BADGE, points: [middle] });
      }
    }
    for (let layer = 1; layer < reply.nLayers; layer++) {
      const [from, to] = [edges[layer][1] + 28, edges[layer - 1][0] - 13];
      labels.push(target(svg, [0, from, wide, to - from], targets, cut, point));
    }
  }
  svg.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
  svg.setAttribute("width", String(wide));
  svg.setAttribute("height", String(tall));
  svg.replaceChildren(...bus, ...faint, ...strong, ...labels);
}

/** A point of a cubic curve. @param {number} t @param {number[]} xs @param {number[]} ys */
function along(t, xs, ys) {
  const [a, b, c, d] = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t ** 2 * (1 - t), t ** 3];
  return [xs, ys].map((p) => a * p[0] + b * p[1] + c * p[2] + d * p[3]);
}

/**
 * The field between the layers, where a click cuts the nearest wire.
 * @param {SVGElement} svg @param {number[]} field  left, top, width and height
 * @param {{name: string, half: number, points: number[][], faint?: boolean}[]} targets
 * @param {(name: string) => void} cut @param {(name: string | null) => void} point
 */
function target(svg, [x, y, wide, tall], targets, cut, point) {
  const nearest = (/** @type {PointerEvent} */ event) => {
    const { left, top } = svg.getBoundingClientRect();
    const by = event.pointerType === "touch" ? "touch" : "mouse";
    /** @type {[string | null, number]} */
    let [best, least] = [null, REACH[by]];
    /** @type {[string | null, number]} */
    let [other, distance] = [null, FAINT_REACH[by]];
    for (const { name, half, points, faint } of targets) {
      const away = Math.min(...points.map(([px, py]) => Math.hypot(px - event.clientX + left, py - event.clientY + top))) - half;
      if (half === BADGE && away < 0) return name;
      if (!faint && away < least) [best, least] = [name, away];
      if (faint && away < distance) [other, distance] = [name, away];
    }
    return best ?? other;
  };
  const field = s("rect", {
    x, y, width: wide, height: tall, class: "cl-target",
    click: (/** @type {PointerEvent} */ event) => {
      const name = nearest(event);
      if (name) cut(name);
    },
    pointermove: (/** @type {PointerEvent} */ event) => {
      const name = nearest(event);
      field.classList.toggle("cl-over", name !== null);
      point(name);
    },
    pointerleave: () => point(null),
  });
  return field;
}

/** Where the input of a head is drawn. @param {number} left @param {number} broad @param {number} i */
function port(left, broad, i) {
  return left + broad * (0.22 + 0.28 * i);
}

/**
 * Parts of a sum as bars to both sides of zero; the intact model pale behind.
 * @param {{name: string, before: number, after: number}[]} parts @param {string} caption
 */
export function bars(parts, caption) {
  const most = Math.max(1, ...parts.flatMap(({ before, after }) => [Math.abs(before), Math.abs(after)]));
  const share = (/** @type {number} */ value) => (Math.abs(value) / most) * 48;
  const bar = (/** @type {number} */ value, /** @type {string} */ kind) =>
    s("rect", {
      x: value < 0 ? 50 - share(value) : 50, width: share(value), y: kind === "was" ? 0 : 3, height: kind === "was" ? 16 : 10,
      class: `cl-bar cl-bar-${kind} cl-${value < 0 ? "down" : "up"}`,
    });
  const text = (/** @type {number} */ value) => h("td", {}, value.toFixed(1).replace("-", "−").replace("−0.0", "0.0"));
  return h(
    "table",
    { class: "cl-sum" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Component"), h("td", {}), h("th", { scope: "col" }, "intact"), h("th", { scope: "col" }, "edited"))),
    h(
      "tbody",
      {},
      parts.map(({ name, before, after }) =>
        h(
          "tr",
          { class: name === "sum" ? "cl-total" : "" },
          h("th", { scope: "row" }, name),
          h("td", { class: "cl-bars" }, s("svg", { viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" }, bar(before, "was"), bar(after, "is"), s("line", { x1: 50, x2: 50, y1: 0, y2: 16, class: "cl-zero" }))),
          text(before),
          text(after),
        ),
      ),
    ),
  );
}
