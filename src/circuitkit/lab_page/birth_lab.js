/**
 * A newborn model in the lab: the lab's own session, view and engine, with the weights of the saved steps.
 */
import { h } from "./dom.js";
import { idsOf, PERIOD, ROW, VOCABULARY } from "./birth_state.js";
import { newRow, randomNumbers } from "./training_rows.js";

/** @typedef {import("./birth_worker.js").Saved} Saved */
/** @typedef {import("./training_rows.js").Recipe} Recipe */
/** @typedef {typeof import("./view.js") & typeof import("./session.js") & typeof import("./asking.js")} Parts */

const TEXT = ROW.slice(0, PERIOD + 4);
const NEXT = ROW[PERIOD + 4];
const WIRE = "L0H0->L1H0.K";
const CALLED = ["", "one-layer", "two-layer"]; // the lab knows the shape of a model by its name

/** What the lab says to try. @param {number} layers @returns {import("./presets.js").Preset} */
function preset(layers) {
  const two = layers === 2;
  return {
    id: "newborn", name: "A newborn model", model: CALLED[layers], text: TEXT, head: two ? "L1H0" : "L0H0", tab: "parts", step: 0,
    cut: two ? WIRE : "",
    try: two ? "Cut the wire marked with scissors. It carries the output of L0H0 to the keys of L1H0. Then move the training step back to before the birth: does the same cut still change anything?" : `This model has one layer, so it has no wires. Switch its head off: does the model predict ${NEXT} with it or without it?`,
    then: `Without this wire, L1H0 cannot find the token after the first h. Move the training step: before the birth, the same cut hardly changes the probability of ${NEXT}.`,
  };
}

/**
 * Open the lab on a saved step.
 * @param {Parts} parts @param {Saved[]} saved @param {number} step @param {Recipe} recipe @param {(step: number) => void} copyLink
 */
export async function openNewborn({ View, Session, WorkerEngine, rest }, saved, step, recipe, copyLink) {
  const { layers } = recipe;
  const name = CALLED[layers];
  const steps = saved.map((one) => one.step);
  const random = randomNumbers(1);
  const rows = Array.from({ length: 8 }, () => newRow(random, true).ids.slice(0, -1));
  const engine = new WorkerEngine(async (/** @type {string} */ what) => {
    if (what === "text") return { data: JSON.stringify({ vocab: VOCABULARY, merges: [], rows }) };
    const at = Number(/-step(\d+)$/.exec(what)?.[1] ?? steps[steps.length - 1]);
    return { name: what.slice("models/".length), model: saved[steps.indexOf(at)].model };
  });
  const session = new (class extends Session {
    preset() {
      return this.state.text === TEXT ? preset(layers) : undefined;
    }
  })(engine, { ...preset(layers), step, cuts: [], fill: "zero", at: -1, answer: idsOf(NEXT)[1] }, { [name]: steps });
  const host = h("circuit-lab", { class: "cl-live", "data-given": "" });
  const view = new (class extends View {
    async copyLink() {
      copyLink(this.session.state.step);
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
