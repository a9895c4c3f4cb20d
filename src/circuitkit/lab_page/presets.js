/**
 * What the lab can start with. Between the brackets is JSON, which the build of the book reads too.
 */

/** @typedef {{id: string, name: string, model: string, text: string, head: string, tab: string, step: number, cut: string, try: string, then: string, other?: string, without?: string, fill?: "zero" | "mean"}} Preset */
// `other` is a second text with as many tokens. `without` names the heads that are off and the wires that are cut, and `fill` what replaces them. `cut` is the wire that is marked until the reader cuts something; `then` is shown instead of `try` once it is cut.

/** @type {Preset[]} */
export const PRESETS = [
  {
    "id": "dursley",
    "name": "A repeated name",
    "model": "two-layer",
    "text": "Mr. Dursley had a neighbour who disliked Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "L0H1->L1H3.K",
    "try": "Click the wire marked with scissors. It carries the output of head L0H1 to the keys (K) of head L1H3.",
    "then": "Without this wire, L1H3 cannot find the first D and copy the token after it. Click the wire again to reconnect it, and then cut others: which three matter most?",
    "other": "Mr. Hursley had a neighbour who disliked Mr. D"
  },
  {
    "id": "name",
    "name": "Mr. Dorling",
    "model": "two-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "L0H1->L1H3.K",
    "try": "Click the wire marked with scissors. It carries the output of head L0H1 to the keys (K) of head L1H3.",
    "then": "Without this wire, L1H3 cannot find the first D and copy the token after it. Click the wire again to reconnect it, and then cut others: which three matter most?"
  },
  {
    "id": "nonsense",
    "name": "Repeated nonsense",
    "model": "two-layer",
    "text": "kx qof zut wem kx qof zut",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "",
    "try": "The bar under each token is the probability that the model gave it. Switch off L0H1 and watch the bars in the second half.",
    "then": ""
  },
  {
    "id": "skip-trigram",
    "name": "A skip trigram",
    "model": "one-layer",
    "text": "The son of the king began to re",
    "head": "L0H0",
    "tab": "words",
    "step": 20000,
    "cut": "",
    "try": "This model has one layer, so it has no wires. Switch the four heads off one at a time: which one needs the word king?",
    "then": ""
  },
  {
    "id": "bug",
    "name": "A bug",
    "model": "one-layer",
    "text": "He had the surm",
    "head": "L0H1",
    "tab": "parts",
    "step": 20000,
    "cut": "",
    "try": "The word surmus does not exist. Which heads raise the logit of us? Does the model still predict it when all four heads are off?",
    "then": ""
  },
  {
    "id": "dorling",
    "name": "Logit attribution",
    "model": "two-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "",
    "try": "Choose or in the table of next tokens, so that its numbers stay on the page. Then delete the first sentence of the text: what happens to the contribution of L1H3?",
    "then": ""
  },
  {
    "id": "titles",
    "name": "Mr, Mrs, Lord",
    "model": "one-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L0H1",
    "tab": "words",
    "step": 20000,
    "cut": "",
    "try": "Replace the last Mr by Mrs, by Miss and by Lord. How does the probability of ash change?",
    "then": ""
  },
  {
    "id": "before",
    "name": "Before induction",
    "model": "two-layer",
    "text": "kx qof zut wem kx qof zut",
    "head": "L1H3",
    "tab": "parts",
    "step": 4200,
    "cut": "",
    "try": "Move the slider of training steps to the right. From which step on does the model predict the second half?",
    "then": ""
  },
  {
    "id": "neuron",
    "name": "A neuron",
    "model": "two-layer-mlp",
    "text": "Mr. Dursley had a neighbour who disliked Mr. D",
    "head": "L1H2",
    "tab": "neurons",
    "step": 14000,
    "cut": "",
    "try": "This model has MLPs. Which of its 1,024 neurons matter most for ur? Switch one off in the list below. Then choose the same MLPs with each neuron as five heads: what changes?",
    "then": ""
  },
  {
    "id": "gate",
    "name": "A gate",
    "model": "gated",
    "text": "start C2 A C3 C5 start B1",
    "head": "L0H6",
    "tab": "gates",
    "step": 0,
    "cut": "",
    "try": "After A and B1, the token C1 is due. Only one gate is open from B1 to A. Force it shut, and then force others open: is there another head that predicts C1?",
    "then": ""
  },
  {
    "id": "build-heads",
    "name": "Build it up: heads",
    "model": "two-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "",
    "try": "All eight heads write only their average output. Switch heads on until or is the most probable token again. How few are enough?",
    "then": "",
    "without": "L0H0,L0H1,L0H2,L0H3,L1H0,L1H1,L1H2,L1H3",
    "fill": "mean"
  },
  {
    "id": "build-wires",
    "name": "Build it up: wires",
    "model": "two-layer",
    "text": "The house belonged to Mr. Dorling. Nobody had seen Mr. D",
    "head": "L1H3",
    "tab": "parts",
    "step": 24000,
    "cut": "",
    "try": "All twelve wires into L1H3 are cut, and all heads are on. Reconnect wires by a click. How few bring or back?",
    "then": "",
    "without": "L0H0->L1H3.Q,L0H0->L1H3.K,L0H0->L1H3.V,L0H1->L1H3.Q,L0H1->L1H3.K,L0H1->L1H3.V,L0H2->L1H3.Q,L0H2->L1H3.K,L0H2->L1H3.V,L0H3->L1H3.Q,L0H3->L1H3.K,L0H3->L1H3.V"
  }
];
