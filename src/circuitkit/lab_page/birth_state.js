/**
 * What a reader sets for "Born in your tab", as an address and back, and the row of letters on which the page shows the model.
 */
import { STEPS } from "./training_rows.js";

/** @typedef {import("./training_rows.js").Recipe} Recipe */
/** @typedef {import("./birth_worker.js").Saved} Saved */

// The tokens behind the start token. A space has a sign of its own in byte-level vocabularies.
const CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
export const VOCABULARY = ["<|endoftext|>", ...CHARACTERS, "Ġ"];
export const ROW = "pathfinderspathfinderspathfinde";
export const PERIOD = 11;
/** @type {Recipe} */
export const USUAL = { seed: 1, layers: 2, share: 1, blind: false };
export const SEEDS = 9999; // the largest

/** The ids of a text behind the start token; every letter is one token. @param {string} text */
export function idsOf(text) {
  return [0, ...Array.from(text, (character) => VOCABULARY.indexOf(character))];
}

/** @param {Recipe} recipe @param {number} [step]  the step that is shown */
export function toBirthAddress({ seed, layers, share, blind }, step) {
  const query = new URLSearchParams({ seed: String(seed), layers: String(layers), share: String(Math.round(share * 100)) });
  if (blind) query.set("blind", "1");
  if (step !== undefined) query.set("step", String(step));
  return `#birth:${query}`;
}

/**
 * What an address sets; what is not in it, or cannot be, is as usual.
 * @param {string} address
 * @returns {{recipe: Recipe, step: number} | null}
 */
export function fromBirthAddress(address) {
  if (!address.startsWith("#birth:")) return null;
  const query = new URLSearchParams(address.slice(7));
  const whole = (/** @type {string} */ name, /** @type {number} */ usual, /** @type {number} */ most) => {
    const text = query.get(name) ?? "";
    return /^\d{1,4}$/.test(text) && Number(text) <= most ? Number(text) : usual;
  };
  const layers = whole("layers", USUAL.layers, 2) === 1 ? 1 : 2;
  const share = Math.round(whole("share", 100, 100) / 5) / 20;
  return { recipe: { seed: whole("seed", USUAL.seed, SEEDS), layers, share, blind: query.get("blind") === "1" }, step: whole("step", STEPS, STEPS) };
}

/** The first saved step at which the last head matches prefixes with half of its attention. @param {Saved[]} saved */
export function birthOf(saved) {
  return saved.find(({ measures }) => measures.prefix >= 0.5)?.step;
}

/** A recipe in words. @param {Recipe} recipe */
export function inWords({ seed, layers, share, blind }) {
  const parts = [`seed ${seed}`, layers === 2 ? "two layers" : "one layer", `${Math.round(share * 100)}% of the rows repeat`];
  return [...parts, ...(blind ? ["layer 0 sees only its own token"] : [])].join(", ");
}
