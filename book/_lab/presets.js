/**
 * What the lab can start with. Between the brackets is JSON, which the build of the book reads too.
 */

/** @typedef {{id: string, name: string, model: string, text: string, head: string, tab: string, step: number, try: string}} Preset */

/** @type {Preset[]} */
export const PRESETS = [
  {
    "id": "dursley",
    "name": "A name comes again",
    "model": "two-layer",
    "text": "Mr. Dursley had a neighbour who disliked Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "try": "Cut the thickest wire: click it, or press its button under Wires to cut. Then undo, and cut another: which three carry the prediction?"
  },
  {
    "id": "nonsense",
    "name": "Nonsense, twice",
    "model": "two-layer",
    "text": "kx qof zut wem kx qof zut",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "try": "A bar under a token says how well it was predicted. Take L0H1 out and watch the second half."
  },
  {
    "id": "skip-trigram",
    "name": "A skip trigram",
    "model": "one-layer",
    "text": "The son of the king began to re",
    "head": "L0H0",
    "tab": "words",
    "step": 20000,
    "try": "One layer, so no wires. Which of the four heads knows about the king? Take it out."
  },
  {
    "id": "bug",
    "name": "A bug",
    "model": "one-layer",
    "text": "He had the surm",
    "head": "L0H1",
    "tab": "parts",
    "step": 20000,
    "try": "There is no such word as surmus. Which heads ask for it? Take all four out: does the rest of the model?"
  },
  {
    "id": "dorling",
    "name": "A logit in parts",
    "model": "two-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "try": "Press or in the table of next tokens: it stays followed. Then delete the first sentence, and watch the part of L1H3."
  }
];
