/**
 * "Born in your tab": a model is trained while the reader watches, and every saved step of it opens in the lab.
 */
import { birthOf, fromBirthAddress, idsOf, inWords, PERIOD, ROW, SEEDS, toBirthAddress, USUAL } from "./birth_state.js";
import { curves, map, MARGIN, spread } from "./birth_draw.js";
import { openNewborn } from "./birth_lab.js";
import { h, percent, s } from "./dom.js";
import { EVERY, STEPS } from "./training_rows.js";

/** @typedef {import("./birth_worker.js").Saved} Saved */
/** @typedef {import("./training_rows.js").Recipe} Recipe */

const COLOURS = ["d55e00", "7a5fc0"]; // of the heads of layers 0 and 1
const BEFORE = 24; // steps before the birth, when the head does not match yet

/** @param {string} text @param {() => void} click @param {string} [kind] */
function button(text, click, kind = "cl-button") {
  return h("button", { type: "button", class: kind, click }, text);
}

class Birth {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.recipe = { ...USUAL }; // of the run
    this.next = { ...USUAL }; // of the run that the next start makes
    /** @type {Saved[]} */
    this.saved = [];
    /** @type {Saved[]} the run before this one */
    this.earlier = [];
    this.shown = 0; // which saved step
    /** @type {"new" | "running" | "paused" | "done"} */
    this.state = "new";
    this.wanted = STEPS; // the step that a link asks for
    /** @type {{share: number, birth: number | undefined}[]} */
    this.own = [];
    /** @type {Record<string, (number | null)[]>} */
    this.births = {};
    /** @type {Worker | null} */
    this.worker = null;
    /** @type {Awaited<ReturnType<typeof openNewborn>> | null} */
    this.lab = null;
    this.rest = () => this.state === "running" && this.pause(); // a lab of the page computes now
    this.frame = this.build();
    this.set(this.next);
    addEventListener("hashchange", () => this.follow());
    this.follow();
    new ResizeObserver(() => {
      this.draw();
      this.drawSpread();
    }).observe(element);
    window.circuitLab.need("births").then((births) => {
      this.births = births;
      this.drawSpread();
    });
  }

  /** Set what a link asks for. */
  follow() {
    const asked = fromBirthAddress(location.hash);
    if (!asked || this.state === "running") return;
    this.wanted = asked.step;
    this.set(asked.recipe);
    this.say(`The settings are those of the link: ${inWords(asked.recipe)}. Press Start.`);
    this.element.scrollIntoView({ behavior: "instant" });
  }

  // --- the elements ------------------------------------------------------------------------------------------------

  build() {
    const settings = this.buildSettings();
    const go = button("Start", () => this.go(), "cl-go");
    const anew = button("Start again", () => this.start());
    const live = h("p", { class: "cb-status", role: "status", "aria-live": "polite" }, "Nothing is trained yet. A run of 240 steps takes about ten seconds.");
    const plot = s("svg", { class: "cb-plot", role: "img" });
    const slider = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: 0, max: STEPS / EVERY, value: 0, "aria-label": "Saved step", input: () => this.show(Number(slider.value)) }));
    const savedStep = h("b", {});
    const under = h("p", { class: "cb-saved", "aria-hidden": "true" }, "Saved step ", savedStep);
    for (const one of [slider, under]) one.style.marginInline = `${MARGIN.left - 8}px ${MARGIN.right - 8}px`;
    const maps = [0, 1].map((layer) => this.buildMap(layer));
    const letters = Array.from(ROW, (letter, i) => h("span", { class: `cb-letter${i && i % PERIOD === 0 ? " cb-again" : ""}` }, letter));
    const reading = h("p", { class: "cb-note" });
    const row = h("div", { class: "cb-row", role: "img" }, letters);
    const open = button("Open this step in the lab", () => this.open());
    const copy = button("Copy a link", async () => this.say(await this.copyLink(this.saved[this.shown]?.step)));
    const link = /** @type {HTMLInputElement} */ (h("input", { type: "text", readonly: true, class: "cb-link", hidden: true, "aria-label": "The link to these settings" }));
    const labBox = h("div", { class: "cb-lab" });
    const chart = s("svg", { class: "cb-plot", role: "img" });
    const chartBox = h("div", {}, chart);
    const panel = h(
      "div",
      { class: "cb-panel", role: "group", "aria-label": "A model that is trained in this page" },
      settings.box,
      h("div", { class: "cb-bar" }, go, anew, live),
      h("div", { class: "cb-main" }, h("div", { class: "cb-left" }, h("p", { class: "cb-heading" }, "How scores and loss change during the training"), plot, slider, under), h("div", { class: "cb-maps" }, maps[1].box, maps[0].box)),
      reading,
      row,
      h("div", { class: "cb-bar" }, open, copy),
      link,
    );
    const caption = h("p", { class: "cb-note" }, "Each grey dot is one of 210 models with two layers that we trained with PyTorch, ten for each share. The purple dots are your runs.");
    this.element.append(panel, labBox, h("div", { class: "cb-panel cb-spread" }, h("p", { class: "cb-heading" }, "When does the head form?"), chartBox, caption));
    return { ...settings, go, anew, live, plot, slider, savedStep, maps, letters, reading, row, open, copy, link, labBox, chart, chartBox };
  }

  /** What is set before the start. */
  buildSettings() {
    const change = () => this.set(this.read());
    const seed = /** @type {HTMLInputElement} */ (h("input", { type: "number", min: 0, max: SEEDS, step: 1, inputmode: "numeric", change }));
    const other = button("Another seed", () => {
      seed.value = String(Math.floor(Math.random() * (SEEDS + 1)));
      change();
    });
    const share = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: 0, max: 100, step: 5, input: change }));
    const shareNow = h("output", {});
    const layers = [2, 1].map((count) => {
      const input = /** @type {HTMLInputElement} */ (h("input", { type: "radio", name: "cb-layers", value: count, change }));
      return { input, label: h("label", {}, input, count === 2 ? " two layers" : " one layer") };
    });
    const blind = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", change }));
    const box = /** @type {HTMLFieldSetElement} */ (h(
      "fieldset",
      { class: "cb-settings" },
      h("legend", {}, "Before you start"),
      h("div", { class: "cb-set", role: "group", "aria-label": "Layers" }, layers.map(({ label }) => label)),
      h("label", { class: "cb-set" }, blind, " knock-out: layer 0 sees only its own token"),
      h("label", { class: "cb-set cb-share" }, h("span", {}, "rows with repeats"), share, shareNow),
      h("div", { class: "cb-set" }, h("label", {}, "seed ", seed), other),
    ));
    return { box, seed, share, shareNow, layers, blind };
  }

  /** The attention of one head. @param {number} layer */
  buildMap(layer) {
    const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { class: "cb-map", width: 1, height: 1, role: "img" }));
    const caption = h("figcaption", {}, "");
    return { canvas, caption, box: h("figure", { class: "cb-figure" }, canvas, caption) };
  }

  // --- the settings ------------------------------------------------------------------------------------------------

  /** @returns {Recipe} what the controls say */
  read() {
    const { seed, share, layers, blind } = this.frame;
    const given = Math.floor(Number(seed.value));
    return { seed: Math.min(SEEDS, Math.max(0, given || 0)), layers: layers[1].input.checked ? 1 : 2, share: Number(share.value) / 100, blind: blind.checked };
  }

  /** Show a recipe in the controls. @param {Recipe} recipe */
  set(recipe) {
    const { seed, share, shareNow, layers, blind } = this.frame;
    this.next = recipe;
    seed.value = String(recipe.seed);
    share.value = String(Math.round(recipe.share * 100));
    shareNow.textContent = `${share.value}%`;
    layers[0].input.checked = recipe.layers === 2;
    layers[1].input.checked = recipe.layers === 1;
    blind.checked = recipe.blind;
    this.controls();
    if (!this.saved.length) this.draw();
  }

  controls() {
    const { go, anew, box, slider, savedStep, open, link } = this.frame;
    go.textContent = { new: "Start", running: "Pause", paused: "Go on", done: "Start again" }[this.state];
    if (document.activeElement === anew) go.focus({ preventScroll: true });
    anew.hidden = this.state !== "paused";
    box.disabled = this.state === "running";
    const saved = this.saved;
    slider.value = String(this.shown);
    slider.disabled = !saved.length;
    const now = saved[this.shown];
    savedStep.textContent = now ? String(now.step) : "–";
    slider.setAttribute("aria-valuetext", now ? `step ${now.step}` : "nothing is saved yet");
    open.textContent = now ? `Open step ${now.step} in the lab` : "Open this step in the lab";
    open.setAttribute("aria-disabled", String(!now));
    link.hidden = true;
  }

  // --- the run -----------------------------------------------------------------------------------------------------

  go() {
    if (this.state === "running") return this.pause();
    if (this.state === "paused") return this.goOn();
    return this.start();
  }

  pause() {
    this.worker?.postMessage({ kind: "pause" });
    this.state = "paused";
    this.controls();
    this.say("Pausing …");
  }

  goOn() {
    window.circuitLab.only(this.rest);
    this.worker?.postMessage({ kind: "go" });
    this.state = "running";
    this.controls();
    this.say("The training goes on.");
  }

  async start() {
    this.worker?.terminate();
    this.close();
    window.circuitLab.only(this.rest);
    if (this.saved.length) this.earlier = this.saved;
    this.saved = [];
    this.shown = 0;
    this.recipe = this.next;
    this.state = "running";
    this.controls();
    this.say(`Training has started: ${inWords(this.recipe)}.`);
    try {
      const [engine, cradle] = await Promise.all(["engine", "cradle"].map((name) => window.circuitLab.need(name)));
      const address = URL.createObjectURL(new Blob([`(${cradle})((${engine})(true))`], { type: "text/javascript" }));
      this.worker = new Worker(address);
      this.worker.addEventListener("message", ({ data }) => this.receive(data));
      this.worker.postMessage({ kind: "start", value: { recipe: this.recipe, ids: idsOf(ROW) } });
    } catch (error) {
      this.state = "new";
      this.controls();
      this.say(`This did not work: ${error instanceof Error ? error.message : error}. Try again.`);
    }
  }

  /** @param {Saved | "paused"} one */
  receive(one) {
    if (one === "paused") return this.say(`Paused at step ${this.saved.at(-1)?.step ?? 0}.`);
    const saved = this.saved;
    const follows = this.shown === Math.max(0, saved.length - 1);
    const born = birthOf(saved);
    saved.push(one);
    if (follows) this.shown = saved.length - 1;
    if (born === undefined && birthOf(saved) !== undefined) this.say(`Step ${one.step}: the induction head has formed. Half of its attention is on the token that came next before.`);
    if (one.step === STEPS) this.end();
    this.controls();
    this.draw();
  }

  /** After the last step. */
  end() {
    const saved = this.saved;
    const { accuracy } = saved[saved.length - 1].measures;
    const birth = birthOf(saved);
    const { layers, share, blind } = this.recipe;
    if (layers === 2 && !blind) this.own.push({ share, birth });
    this.drawSpread();
    const asked = saved.findIndex(({ step }) => step >= (this.wanted));
    if (asked >= 0 && this.wanted !== STEPS) this.shown = asked;
    this.wanted = STEPS;
    this.state = "done";
    this.worker?.terminate(); // every step is saved
    const what = birth === undefined ? "No induction head has formed" : `The induction head formed at step ${birth}`;
    this.say(`${what}. After ${STEPS} steps, the accuracy is ${percent(accuracy)}.`);
  }

  /** @param {string} text */
  say(text) {
    this.frame.live.textContent = text;
  }

  // --- the pictures ------------------------------------------------------------------------------------------------

  /** Show another saved step. @param {number} place */
  show(place) {
    this.shown = Math.max(0, Math.min(place, this.saved.length - 1));
    this.controls();
    this.draw();
  }

  draw() {
    const { plot } = this.frame;
    const { saved, shown, earlier } = this;
    const layers = (saved.length ? this.recipe : this.next).layers;
    const birth = birthOf(saved);
    const wide = plot.parentElement?.clientWidth ?? 0;
    if (wide > 0) curves(plot, wide, { saved, shown, birth, before: earlier, layers });
    const now = saved[shown];
    const told = now ? `At step ${now.step}: loss ${now.measures.loss.toFixed(2)} nats, accuracy ${percent(now.measures.accuracy)}, prefix matching ${percent(now.measures.prefix)}${layers === 2 ? `, previous token ${percent(now.measures.previous)}` : ""}.` : "No step is saved yet.";
    plot.setAttribute("aria-label", `Curves over 240 training steps: accuracy and the scores of the heads in percent, and the loss. ${told}${birth === undefined ? "" : ` The induction head forms at step ${birth}.`}`);
    this.drawRow(layers);
  }

  /** The stored runs, and those of the reader. */
  drawSpread() {
    const { chart, chartBox } = this.frame;
    if (chartBox.clientWidth > 0) spread(chart, chartBox.clientWidth, this.births, this.own);
    const medians = [100, 75, 50, 25].map((share) => {
      const steps = (this.births[share] ?? []).map((step) => step ?? Infinity).sort((a, b) => a - b);
      const middle = steps[Math.floor(steps.length / 2)];
      return `${share}%: ${middle < Infinity ? `step ${middle}` : "never"}`;
    });
    chart.setAttribute("aria-label", `Dots: the step at which the head forms, over the share of rows with repeats, in 210 stored runs. The middle run of ten for ${medians.join(", ")}.`);
  }

  /** The attention patterns and the row of letters at the step that is shown. @param {number} layers */
  drawRow(layers) {
    const { maps, letters, reading, row } = this.frame;
    const now = this.saved[this.shown];
    maps.forEach(({ canvas, caption, box }, layer) => {
      const last = layer === layers - 1;
      const score = now ? ` ${percent(now.measures[last ? "prefix" : "previous"])}` : "";
      box.hidden = layer >= layers;
      box.classList.toggle("cb-last", last);
      caption.replaceChildren(h("b", {}, `L${layer}H0`), h("br"), `${last ? "prefix matching" : "previous token"}${score}`, layers === 2 && !last && now ? h("span", { class: "cb-aside" }, firstPass(now)) : "");
      canvas.setAttribute("aria-label", `The attention pattern of L${layer}H0 on the row of letters`);
      if (now?.patterns[layer]) map(canvas, now.patterns[layer], ROW.length + 1, COLOURS[last && layers === 1 ? 1 : layer]);
    });
    letters.forEach((letter, i) => letter.style.setProperty("--p", (now?.chances[i + 1] ?? 0).toFixed(3)));
    const known = now?.chances.slice(PERIOD + 2) ?? [];
    const mean = known.reduce((sum, p) => sum + p, 0) / known.length;
    reading.textContent = now ? `Step ${now.step}. The bar under each letter is the probability that the model gave to it, after it had read the letters before: ${percent(mean)} on average for the letters that come again.` : "The bar under each letter will be the probability that the model gives to it. The letters are random tokens to the model, and it never trains on this row.";
    row.setAttribute("aria-label", `The row ${ROW}${now ? `; the letters that come again get ${percent(mean)} on average` : ""}`);
  }

  // --- the lab and the link ----------------------------------------------------------------------------------------

  close() {
    this.lab?.end();
    this.lab = null;
    this.frame.labBox.replaceChildren();
  }

  async open() {
    const saved = [...this.saved];
    const now = saved[this.shown];
    const { labBox } = this.frame;
    if (!now) return this.say("Nothing is trained yet. Press Start first.");
    if (this.state === "running") this.pause();
    this.close();
    this.say("The lab is opening …");
    try {
      const parts = await window.circuitLab.need("parts");
      this.lab = await openNewborn(parts, saved, now.step, this.recipe, (step) => this.copyLink(step));
    } catch (error) {
      return this.say(`This did not work: ${error instanceof Error ? error.message : error}. Try again.`);
    }
    const { host, session } = this.lab;
    const birth = birthOf(saved);
    const to = (/** @type {number} */ step, /** @type {string} */ name) => button(`${name} (step ${step})`, () => session.slide(step));
    const early = saved.findLast(({ step }) => step <= Math.max(0, (birth ?? 0) - BEFORE))?.step ?? 0;
    const jumps = birth === undefined ? [] : [to(early, "Before the birth"), to(saved[saved.length - 1].step, "After it")];
    const heading = h("p", { class: "cb-heading", tabindex: "-1" }, `The model of seed ${this.recipe.seed} in the lab`);
    labBox.replaceChildren(h("div", { class: "cb-bar" }, heading, jumps), host);
    this.say(`Step ${now.step} is open in the lab below.`);
    heading.focus({ preventScroll: true });
    labBox.scrollIntoView({ block: "start", behavior: "instant" });
  }

  /** What to tell the reader about the link that was copied. @param {number} [step] */
  async copyLink(step) {
    const { link } = this.frame;
    const page = this.element.dataset.page ?? location.href;
    link.value = new URL(toBirthAddress(this.saved.length ? this.recipe : this.next, step), new URL(page, location.href)).href;
    link.hidden = false;
    try {
      await navigator.clipboard.writeText(link.value);
      return "The link is copied. It carries the settings, and the run is the same for everybody who starts it.";
    } catch {
      return "The browser does not let the page copy; select the link and copy it.";
    }
  }
}

/** Why the previous-token score need not be high: what happens on the first pass through the letters. @param {Saved} now */
function firstPass({ patterns: [first, second] }) {
  const n = ROW.length + 1;
  const places = Array.from({ length: PERIOD }, (_, i) => i + 1); // of the letters of the first pass
  const later = Array.from({ length: n - 1 - PERIOD }, (_, i) => PERIOD + 1 + i);
  const back = places.reduce((sum, i) => sum + first[i * n + i - 1], 0) / places.length;
  const read = later.reduce((sum, i) => sum + places.reduce((all, j) => all + second[i * n + j], 0), 0) / later.length;
  return `${percent(back)} at the first ${PERIOD} letters, which get ${percent(read)} of L1H0's attention later`;
}

customElements.define(
  "circuit-birth",
  class extends HTMLElement {
    connectedCallback() {
      if (this.classList.contains("cl-live")) return;
      this.classList.add("cl-live");
      new Birth(this);
    }
  },
);
