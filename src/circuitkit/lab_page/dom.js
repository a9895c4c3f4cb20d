/**
 * Elements without markup: whatever a reader types stays text.
 */

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * @param {string} tag
 * @param {Record<string, any>} [properties]  attributes; functions are listeners, `class` and `data-` as in HTML
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/**
 * The same for pictures.
 * @param {string} tag @param {Record<string, any>} [properties] @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

/**
 * @template {Element} T
 * @param {T} element @param {Record<string, any>} properties @param {(Child | Child[])[]} children
 * @returns {T}
 */
function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A token made visible: a space becomes a dot, an invisible character its number. @param {string} text */
export function visible(text) {
  if (text === "<|endoftext|>") return "start";
  return text
    .replace(/ /g, "·")
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/[\p{C}\p{Z}\p{M}]/gu, (character) => `‹${(character.codePointAt(0) ?? 0).toString(16).toUpperCase()}›`);
}

/** A probability as a percentage. @param {number} p */
export function percent(p) {
  if (p >= 0.995) return p > 0.9995 ? "100%" : `${(p * 100).toFixed(1)}%`;
  if (p >= 0.0995) return `${Math.round(p * 100)}%`;
  return p < 0.0005 ? "0%" : `${(p * 100).toFixed(1)}%`;
}

/** A signed number with one digit. @param {number} value */
export function signed(value) {
  const text = Math.abs(value).toFixed(1);
  return text === "0.0" ? "0.0" : (value < 0 ? "−" : "+") + text;
}

/** A count with separators; the browser's own formatter would first load its language tables. @param {number} n */
export function thousands(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A wire or head in words. @param {string} name */
export function spoken(name) {
  const [from, to] = name.split("->");
  const [gated, how] = name.split(/ (?=open$|shut$)/);
  if (how) return `the gate of ${gated}`;
  if (!to) return name;
  const [head, input] = to.split(".");
  if (!input) return `the wire from ${from} to ${head}`;
  return `the wire from ${from} to the ${{ Q: "queries", K: "keys", V: "values" }[input]} of ${head}`;
}
