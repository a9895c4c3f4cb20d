/**
 * The byte-level BPE tokenizer of the shipped models, token for token the one of the library.
 */

/** @typedef {{vocab: string[], merges: number[], start?: number[], specials?: Record<string, number>}} TokenizerData  entries by id; pairs of ids, best first; what a text is opened with; tokens that are no text */

// The pattern that cuts a text into pieces. JavaScript's \s is not Unicode's White_Space, which the library means.
const PIECE =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const START = "<|endoftext|>";
const SIZE = 1 << 16; // more than there are ids

/** The character that represents each byte in the vocabulary: itself if it is visible, else one from 256 on. */
function byteCharacters() {
  const characters = [];
  for (let byte = 0, next = 256; byte < 256; byte++) {
    const seen = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    characters.push(String.fromCharCode(seen ? byte : next++));
  }
  return characters;
}

export class Tokenizer {
  /** @param {TokenizerData} data */
  constructor({ vocab, merges, start = [0], specials = { [START]: 0 } }) {
    this.vocab = vocab;
    this.start = start;
    this.specials = new Map(Object.entries(specials));
    const written = [...this.specials.keys()].sort((a, b) => b.length - a.length).map((one) => one.replace(/[^\p{L}\p{N}]/gu, "\\$&"));
    this.special = new RegExp(`(${written.join("|") || "(?!)"})`);
    const ids = new Map(vocab.map((entry, id) => [entry, id]));
    const characters = byteCharacters();
    this.bytes = new Map(characters.map((character, byte) => [character, byte]));
    this.idOfByte = characters.map((character) => ids.get(character) ?? 0);
    /** @type {Map<number, number>} pair of ids: the rank of its merge */
    this.ranks = new Map();
    /** @type {number[]} the id that each merge makes */
    this.made = [];
    for (let i = 0; i < merges.length; i += 2) {
      this.ranks.set(merges[i] * SIZE + merges[i + 1], i / 2);
      this.made.push(ids.get(vocab[merges[i]] + vocab[merges[i + 1]]) ?? 0);
    }
  }

  /**
   * The ids of a text, opened by the start token as the models expect it; stops when there are `enough`.
   * @param {string} text @param {number} [enough]
   * @returns {number[]}
   */
  encode(text, enough = Infinity) {
    const ids = [...this.start];
    const utf8 = new TextEncoder();
    for (const [i, stretch] of text.split(this.special).entries()) {
      if (i % 2) {
        ids.push(this.specials.get(stretch) ?? 0);
        continue;
      }
      for (const [piece] of stretch.matchAll(PIECE)) {
        if (ids.length >= enough) return ids;
        this.merge(utf8.encode(piece), ids);
      }
    }
    return ids;
  }

  /**
   * Merge the bytes of one piece, best pair first, and append what is left.
   * @param {Uint8Array} bytes @param {number[]} out
   */
  merge(bytes, out) {
    let parts = Array.from(bytes, (byte) => this.idOfByte[byte]);
    for (;;) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(parts[i] * SIZE + parts[i + 1]);
        if (rank !== undefined && rank < best) best = rank;
      }
      if (best === Infinity) break;
      // A merge makes no pair that is better than itself, so all its places can be merged in one go.
      const merged = [];
      for (let i = 0; i < parts.length; i++) {
        const fits = i + 1 < parts.length && this.ranks.get(parts[i] * SIZE + parts[i + 1]) === best;
        merged.push(fits ? this.made[best] : parts[i]);
        if (fits) i++;
      }
      parts = merged;
    }
    for (const id of parts) out.push(id);
  }

  /**
   * What a token looks like: its text, or its bytes where they are no text by themselves.
   * @param {number} id
   */
  show(id) {
    if (id === 0) return START;
    const bytes = Uint8Array.from(this.vocab[id], (character) => this.bytes.get(character) ?? 0);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return Array.from(bytes, (byte) => `<${byte.toString(16).toUpperCase().padStart(2, "0")}>`).join("");
    }
  }
}
