/**
 * The lab on a page: an engine that computes, a session that knows what the reader has set, and a view that draws.
 */
import { WorkerEngine } from "./asking.js";
import { PRESETS } from "./presets.js";
import { rest, Session } from "./session.js";
import { fromAddress, fromPreset, left } from "./state.js";
import { View } from "./view.js";

/** @typedef {import("./state.js").Steps} Steps */

const engine = new WorkerEngine();
/** @type {WeakMap<HTMLElement, View>} */
const labs = new WeakMap();

/**
 * Bring the lab of an element to life, or to another state.
 * @param {HTMLElement} element @param {string} address
 */
export async function open(element, address) {
  if (element.dataset.own !== undefined) return openOwn(element);
  /** @type {{steps: Steps}} */
  const { steps } = await window.circuitLab.need("text");
  const preset = PRESETS.find(({ id }) => id === element.dataset.preset) ?? PRESETS[0];
  const asked = fromAddress(address, steps);
  const { text = preset.text } = JSON.parse(element.dataset.held ?? "{}"); // of the page
  const { id: from } = PRESETS.find(({ id }) => address === `#lab-${id}`) ?? preset;
  const state = asked ?? { ...fromPreset(preset), text };
  const unread = address && !asked ? "The link could not be read, so the lab starts from the preset" : asked && left(address, asked) ? "A part of the link could not be read" : "";
  const known = labs.get(element);
  if (known) {
    known.session.from = from;
    await known.session.change(state, unread || "From the link");
    return;
  }
  await rest();
  const session = new Session(engine, state, steps);
  session.from = from;
  const view = new View(element, session);
  const { root, presets, circuit } = view.frame;
  await engine.bring(session.file(state));
  await rest();
  labs.set(element, view);
  element.append(root);
  await rest();
  await session.update(unread || "Ready");
  // Only now does the lab take the place of the picture, so that a reader does not see it grow.
  element.classList.add("cl-live");
  const had = element.contains(document.activeElement) && !root.contains(document.activeElement);
  if (had) (session.preset() && !view.home ? presets[0] : circuit).focus({ preventScroll: true });
  for (const old of element.querySelectorAll(".cl-start, .cl-poster .cl-go")) old.remove();
  // The lab is shorter than the picture that it replaces, so its top could be above the window.
  if (had && root.getBoundingClientRect().top < 0) root.scrollIntoView({ block: "start", behavior: "instant" });
}

/**
 * A page that is one file: the lab with the model behind it.
 * @param {HTMLElement} element
 */
async function openOwn(element) {
  const note = /** @type {HTMLElement} */ (element.querySelector(".cl-note"));
  try {
    const own = await engine.openFile(document.getElementById("ck-lab-file")?.textContent ?? "");
    const session = new Session(engine, { ...fromPreset(PRESETS[0]), model: "own", text: own.rows[0].text }, {});
    const view = new View(element, session);
    element.append(view.frame.root);
    await session.begins(own);
    session.past.length = 0;
    view.controls();
    element.classList.add("cl-live");
    note.remove();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    note.textContent = `This model is not shown: ${reason.replace(/\.$/, "")}. In a notebook, ck.run(model, tokens, without="L0H1") makes the same cuts where the library can read the model.`;
  }
}
