/**
 * A newborn model in the lab: the lab's own session, view and engine, with the weights of the saved steps.
 */
import { h } from "./dom.js";
import { birthOf, idsOf, PERIOD, ROW, VOCABULARY } from "./birth_state.js";
import { newRow, randomNumbers } from "./training_rows.js";

/** @typedef {import("./birth_worker.js").Saved} Saved */
/** @typedef {import("./training_rows.js").Recipe} Recipe */
/** @typedef {typeof import("./view.js") & typeof import("./session.js") & typeof import("./asking.js")} Parts */

const TEXT = ROW.slice(0, PERIOD + 4);
const NEXT = ROW[PERIOD + 4];
const WIRE = "L0H0->L1H0.K";
/** What a wire does is shown only after the reader has tried two of the three. @type {import("./guess.js").Held} */
const HELD = { panels: ["wires"], cuts: 2, until: "after you have cut two wires" };
const CALLED = ["", "one-layer", "two-layer"]; // the lab knows the shape of a model by its name

/**
 * What the lab says to try at a step.
 * @param {number} layers @param {boolean} born  whether the head has formed by then @param {boolean} ever  or forms later
 * @returns {import("./presets.js").Preset}
 */
function preset(layers, born, ever) {
  const usual = { id: "newborn", name: "A newborn model", model: CALLED[layers], text: TEXT, head: `L${layers - 1}H0`, tab: "parts", step: 0, cut: "", then: "" };
  if (layers === 1) return { ...usual, try: `This model has one layer, so it has no wires. Switch its head off: how much did it help to predict ${NEXT}?` };
  if (born)
    return {
      ...usual,
      cut: WIRE,
      try: `Three wires lead from L0H0 to L1H0: into its queries (Q), its keys (K) and its values (V). Without which of them does the model no longer predict ${NEXT}? Cut each one alone.`,
      then: `Without this wire, L1H0 cannot find the ${NEXT} that followed the first h. Choose a training step before the birth: how much does the same cut change there?`,
    };
  const later = ever ? "Choose a training step after the birth, and compare." : "In this run, no induction head forms.";
  return { ...usual, try: `At this step, L1H0 does not find the ${NEXT} that followed the first h. Cut each of the three wires: how much does the logit change? ${later}` };
}

/**
 * Open the lab on a saved step.
 * @param {Parts} parts @param {Saved[]} saved @param {number} step @param {Recipe} recipe @param {(step: number) => Promise<string>} copyLink
 */
export async function openNewborn({ View, Session, WorkerEngine, rest }, saved, step, recipe, copyLink) {
  const { layers } = recipe;
  const name = CALLED[layers];
  const steps = saved.map((one) => one.step);
  const birth = birthOf(saved) ?? Infinity;
  const at = (/** @type {number} */ now) => preset(layers, now >= birth, birth < Infinity);
  const random = randomNumbers(1);
  const rows = Array.from({ length: 8 }, () => newRow(random, true).ids.slice(0, -1));
  const engine = new WorkerEngine(async (/** @type {string} */ what) => {
    if (what === "text") return { data: JSON.stringify({ vocab: VOCABULARY, merges: [], rows }) };
    const of = Number(/-step(\d+)$/.exec(what)?.[1] ?? steps[steps.length - 1]);
    return { name: what.slice("models/".length), model: saved[steps.indexOf(of)].model };
  });
  const session = new (class extends Session {
    preset() {
      return this.state.text === TEXT ? at(this.state.step) : undefined;
    }

    /** Which wire it is, the reader finds out. */
    marked() {
      return "";
    }
  })(engine, { ...at(step), step, cuts: [], fill: "zero", at: -1, answer: idsOf(NEXT)[1] }, { [name]: steps });
  const host = h("circuit-lab", { class: "cl-live", "data-given": "", "data-preset": "newborn", ...(layers === 2 && { "data-held": JSON.stringify(HELD) }) });
  const view = new (class extends View {
    async copyLink() {
      this.say(await copyLink(this.session.state.step));
    }

    /** The panel with Python is for models that the library ships. @param {KeyboardEvent} event */
    turn(event) {
      const last = this.frame.tabs.length - 1;
      const at = this.frame.tabs.findIndex((tab) => tab.tabIndex === 0);
      if ((event.key === "ArrowRight" && at === last - 1) || (event.key === "ArrowLeft" && !at)) return;
      super.turn(event);
    }
  })(host, session);
  const { presetRow, model, tabs, paper, link, root } = view.frame;
  for (const one of [presetRow, model.previousElementSibling, model, tabs[tabs.length - 1], paper, link]) one?.remove();
  await engine.bring(session.file(session.state));
  host.append(root);
  await rest();
  await session.update(`Step ${step}`);
  return { host, session, end: async () => (await engine.worker)?.terminate() };
}
