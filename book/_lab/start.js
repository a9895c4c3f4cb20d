/**
 * All that a page loads before the reader touches the lab: a button that brings the rest, and the door for what arrives.
 */

const here = /** @type {HTMLScriptElement} */ (document.currentScript).src;
/** @type {Map<string, {promise: Promise<any>, arrived: (value: unknown) => void}>} */
const wanted = new Map();
/** @type {{open: (element: HTMLElement, address: string) => Promise<void>} | undefined} */
let opened;

window.circuitLab = {
  deliver(name, value) {
    wanted.get(name)?.arrived(value);
  },
  /** Load a script of this folder once; it delivers its value under its own name. */
  need(name) {
    const known = wanted.get(name);
    if (known) return known.promise;
    const script = document.createElement("script");
    /** @type {(value: unknown) => void} */
    let arrived = () => {};
    const promise = new Promise((resolve, reject) => {
      let came = false;
      arrived = (value) => {
        came = true;
        resolve(value);
      };
      // A script that came and delivered nothing has failed as well.
      for (const end of ["load", "error"])
        script.addEventListener(end, () => {
          if (came) return;
          wanted.delete(name);
          reject(new Error(`${name}.js did not load`));
        });
    });
    wanted.set(name, { promise, arrived });
    script.src = new URL(`${name}.js`, here).href;
    document.head.append(script);
    promise.finally(() => script.remove()).catch(() => {});
    return promise;
  },
  /** Let go of what is no longer needed here. */
  forget(name) {
    wanted.delete(name);
  },
};

class CircuitLab extends HTMLElement {
  connectedCallback() {
    if (this.querySelector(":scope > .cl-start")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "cl-go";
    button.textContent = "Start the model";
    button.addEventListener("click", () => this.start());
    const note = document.createElement("span");
    note.className = "cl-note";
    note.setAttribute("role", "status");
    note.textContent = "It comes to your browser and runs there; nothing is sent anywhere.";
    const start = document.createElement("div");
    start.className = "cl-start";
    start.append(button, note);
    this.append(start);
    // Who follows a link to a finding wants to see it.
    const follow = () => {
      const asked = this.dataset.linked !== undefined && /^#lab(:|-(?!toy$))/.test(location.hash) ? location.hash : "";
      if (asked && asked !== this.shown) this.start(asked);
    };
    this.shown = "";
    if (this.dataset.linked !== undefined) addEventListener("hashchange", follow);
    follow();
  }

  /** @param {string} [address] */
  async start(address = "") {
    const button = this.querySelector(".cl-go");
    const note = this.querySelector(".cl-note");
    if (button?.getAttribute("aria-disabled") === "true") return;
    button?.setAttribute("aria-disabled", "true");
    this.setAttribute("aria-busy", "true");
    if (note) note.textContent = "The model is on its way …";
    try {
      const parts = await window.circuitLab.need("parts");
      const made = await window.circuitLab.need("lab");
      await new Promise((done) => setTimeout(done));
      opened ??= made(parts);
      await opened?.open(this, address);
    } catch (error) {
      if (note) note.textContent = `This did not work: ${error instanceof Error ? error.message : error}. Try again.`;
    }
    button?.removeAttribute("aria-disabled");
    this.removeAttribute("aria-busy");
  }
}

customElements.define("circuit-lab", CircuitLab);
