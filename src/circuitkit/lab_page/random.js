/**
 * Random numbers that are the same on every machine, from products of 32-bit integers: mulberry32 (Tommy Ettinger, 2017).
 */

export class Stream {
  /** @param {string} text  its 32-bit FNV-1a hash is the start of the counter */
  constructor(text) {
    this.state = 0x811c9dc5;
    for (const byte of new TextEncoder().encode(text)) this.state = Math.imul(this.state ^ byte, 0x01000193);
  }

  /** The next number from 0 to 1. */
  next() {
    this.state = (this.state + 0x6d2b79f5) | 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** One of 0 to n - 1. @param {number} n */
  below(n) {
    return Math.floor(this.next() * n);
  }

  /** 0 to n - 1 in random order. @param {number} n */
  order(n) {
    const items = Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) {
      const j = this.below(i + 1);
      [items[i], items[j]] = [items[j], items[i]];
    }
    return items;
  }
}
