/**
 * All that a page loads before the lab starts: a button that loads the rest, and the function that receives it.
 */

const here = /** @type {HTMLScriptElement} */ (document.currentScript).src;
/** @type {Map<string, {promise: Promise<any>, arrived: (value: unknown) => void}>} */
const wanted = new Map();
/** @type {{open: (element: HTMLElement, address: string) => Promise<void>} | undefined} */
let opened;

window.circuitLab = {
  deliver(name, value) {
    const known = wanted.get(name);
    if (known) known.arrived(value);
    else wanted.set(name, { promise: Promise.resolve(value), arrived: () => {} }); // a page that is one file has everything already
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
  /** Forget a value that is no longer needed here. */
  forget(name) {
    wanted.delete(name);
  },
};

/** From this width of the window on, the lab of the home page and of its own page starts by itself. */
const DESK = "(min-width: 1000px)";

class CircuitLab extends HTMLElement {
  connectedCallback() {
    // A lab that another part of the page opens has nothing to start.
    if (this.dataset.given !== undefined || this.querySelector(".cl-start")) return;
    if (this.dataset.own !== undefined) {
      const said = document.createElement("p");
      said.className = "cl-start cl-note";
      said.setAttribute("role", "status");
      this.append(said);
      // The weights stand behind this element.
      addEventListener("DOMContentLoaded", () => this.start());
      return;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "cl-go";
    button.addEventListener("click", () => this.start());
    const label = document.createElement("span");
    label.textContent = "Start the model";
    button.append(label);
    const note = document.createElement("span");
    note.className = "cl-note";
    note.setAttribute("role", "status");
    note.textContent = "It loads 1.8 MB and runs in your browser. Nothing is uploaded.";
    const start = document.createElement("div");
    start.className = "cl-start";
    // Where there is a still picture of the circuit, the whole picture is the button.
    const picture = this.querySelector(".cl-poster");
    if (picture) {
      picture.append(button);
      start.append(note);
      picture.after(start);
    } else {
      start.append(button, note);
      this.append(start);
    }
    this.startInView();
    // A link to a finding starts the lab at once.
    const follow = () => {
      const asked = this.dataset.linked !== undefined && /^#lab(:|-(?!toy$))/.test(location.hash) ? location.hash : "";
      if (asked && asked !== this.shown) this.start(asked);
    };
    this.shown = "";
    if (this.dataset.linked !== undefined) addEventListener("hashchange", follow);
    follow();
  }

  /** At a desk a lab with a picture starts when a quarter of it is in the window, unless the reader saves data. */
  startInView() {
    const connection = /** @type {{saveData?: boolean} | undefined} */ (/** @type {any} */ (navigator).connection);
    if (this.dataset.auto === undefined || connection?.saveData || !matchMedia(DESK).matches) return;
    this.classList.add("cl-auto");
    const watcher = new IntersectionObserver(
      (seen) => {
        if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
        watcher.disconnect();
        if (!this.classList.contains("cl-live")) this.start();
      },
      { threshold: 0.25 },
    );
    watcher.observe(this);
  }

  /** @param {string} [address] */
  async start(address = "") {
    const button = this.querySelector(".cl-go");
    const note = this.querySelector(".cl-note");
    if (button?.getAttribute("aria-disabled") === "true") return;
    button?.setAttribute("aria-disabled", "true");
    this.setAttribute("aria-busy", "true");
    if (note) note.textContent = "Loading the model …";
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
