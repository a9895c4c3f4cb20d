/**
 * What the two sides of the lab say to each other: the drawing side asks an engine, and every engine answers in this form.
 */

/** @typedef {import("./analysis.js").Part} Part */
/** @typedef {{id: number, text: string, before: number, after: number, other?: number}} Guess  a next token and its probabilities, also after the second text */
/** @typedef {{id: number, text: string, value: number}} Word */
/**
 * @typedef {object} Setting  what is asked about
 * @property {string} model  name of the file with the weights
 * @property {string} text
 * @property {string[]} cuts
 * @property {"zero" | "mean" | "patch"} fill  "patch" takes values from the second text
 * @property {string} [other]  the second text
 * @property {number} at  a position; -1 is the last
 * @property {number} answer  a token; -1 is the first choice of the whole model
 */
/**
 * @typedef {object} Reply
 * @property {{id: number, text: string}[]} tokens
 * @property {boolean} cropped  whether the text goes on where the model's context ends
 * @property {number} at
 * @property {number} nLayers
 * @property {number} nHeads
 * @property {number} [nNeurons]  of each layer
 * @property {number} [asHeads]  of how many heads a neuron consists
 * @property {Float32Array[]} patterns  for each layer [heads, n, n]
 * @property {Guess} answer
 * @property {Guess[]} guesses  the first five before and the first five after, best first
 * @property {{before: number, after: number}[]} predicted  of each token after the first: its probability
 * @property {{before: Part[], after: Part[]}} parts
 * @property {{count: number, fits: boolean} | null} [other]  how many tokens the second text has, and whether values can be taken from it
 * @property {(Omit<import("./failure.js").Failure, "winner" | "token"> & {winner: Guess, token: Guess}) | null} [failure]  why a repeat is not continued
 * @property {Float32Array} [logits]  of the run with the cuts, every position
 */
/** @typedef {{model: string, head: string, token: number, source: number, via?: string, back?: number}} WordsQuestion  `back`: how far the source is, where queries and keys are turned */
/**
 * @typedef {object} OwnModel  what a file of `ck.lab` holds
 * @property {string} title
 * @property {number} nLayers
 * @property {number} nHeads
 * @property {number} [nNeurons]
 * @property {{text: string, shown: string}[]} rows
 * @property {boolean} rotary  whether queries and keys are turned by position
 * @property {boolean} types  whether a reader can type a text; if not, she types token ids
 * @property {[number, number]} rounding  what rounding the weights changes, and the largest logit
 * @property {number} difference  the largest from PyTorch
 * @property {number} largest
 * @property {number} count  of logits that were compared
 * @property {boolean} [alone]  whether the page computes, because its browser allows it no worker
 */
/** @typedef {{names: string[], table: number[][]}} Score  of one head from one position to another, query side by key side */
/** @typedef {{looksFor: Word[], raises: Word[], lowers: Word[]}} Words  of a head, from its weights alone */
/** @typedef {{read: number, heads: {weight: number, value: number}[], difference: number}} AsHeads  what a neuron reads, its heads, and how far the logits are from those of the MLPs */
/** @typedef {{name: string, gate: number, attention: number}} Gate  of one head between two positions */
/**
 * @typedef {object} Engine  what computes: a worker of the page, or something else that answers in this form
 * @property {(model: string) => boolean} has  whether the weights of a model are here already
 * @property {(model: string) => Promise<unknown>} bring  fetch the weights of a model, once
 * @property {(setting: Setting) => Promise<Reply>} run  the whole model and the model with the cuts
 * @property {(setting: Setting & {from: number, time: number, names?: string[]}) => Promise<{found: Record<string, number>, next: number}>} measure  the effects of
 *   heads and wires, or of what `names` names, cut in addition, beginning with number `from`: as many as the time in milliseconds allows;
 *   `next` is 0 after the last
 * @property {(setting: Setting) => Promise<{names: string[], fired: number[]}>} neurons  those that may matter most first, and what each gathers
 * @property {(setting: Setting & {neuron: string, of: string}) => Promise<AsHeads>} asHeads
 * @property {(setting: Setting & {source: number}) => Promise<Gate[]>} gates
 * @property {(text: string) => Promise<OwnModel>} openFile  the weights of a file of `ck.lab`, in base64
 * @property {(question: {model: string, query: string}) => Promise<{found: {id: number, text: string}[], count: number}>} find  tokens
 * @property {(question: Setting & {head: string, source: number}) => Promise<Score>} score
 * @property {(question: WordsQuestion) => Promise<Words>} words
 */
/**
 * @typedef {object} Screen  what draws
 * @property {(said: string) => void} say  tell the reader
 * @property {() => void} begin  a state is asked for
 * @property {(reply: Reply, said: string | null, before: Reply | null, effects: () => Promise<void>) => (() => unknown)[]} drawing
 *   of a reply, in parts that are made one after the other; `effects` brings the effects of heads and wires
 * @property {(asked: number) => void} end  the newest state is drawn
 * @property {(left: number) => void} more  further effects are measured
 */

export {};
