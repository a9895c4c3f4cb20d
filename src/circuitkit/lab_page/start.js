/**
 * All that a page loads before the lab starts: a button that loads the rest, and the function that receives it.
 */

const here = /** @type {HTMLScriptElement} */ (document.currentScript).src;
/** @type {Map<string, {promise: Promise<any>, arrived: (value: unknown) => void}>} */
const wanted = new Map();
/** @type {{open: (element: HTMLElement, address: string) => Promise<void>} | undefined} */
let opened;
/** @type {(() => void) | undefined} ends the worker of the part of the page that started one last */
let working;

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
  /** A page has one worker that computes: whoever starts one ends that of the part before. */
  only(end) {
    if (working !== end) working?.();
    working = end;
  },
  /** Forget a value that is no longer needed here. */
  forget(name) {
    wanted.delete(name);
  },
};

/** From this width of the window on, the lab of the home page and of its own page starts by itself. */
const DESK = "(min-width: 1000px)";

/** Whether something may load before the reader asks for it. */
function mayStart() {
  const connection = /** @type {{saveData?: boolean} | undefined} */ (/** @type {any} */ (navigator).connection);
  return !connection?.saveData && matchMedia(DESK).matches;
}

/** Once an element comes into view. @param {HTMLElement} element @param {IntersectionObserverInit} when @param {() => void} run */
function whenSeen(element, when, run) {
  const watcher = new IntersectionObserver((seen) => {
    if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
    watcher.disconnect();
    run();
  }, when);
  watcher.observe(element);
}

/** @param {string} words @param {() => void} click */
function goButton(words, click) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "cl-go";
  button.addEventListener("click", click);
  const label = document.createElement("span");
  label.textContent = words;
  button.append(label);
  return button;
}

/** @param {string} words */
function noteOf(words) {
  const note = document.createElement("span");
  note.className = "cl-note";
  note.setAttribute("role", "status");
  note.textContent = words;
  return note;
}

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
    const button = goButton("Start the model", () => this.start());
    const note = noteOf(`It loads ${this.dataset.size ?? "1.8"} MB and runs in your browser. Nothing is uploaded.`);
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

  /** At a desk a lab starts when it comes into view, unless the reader saves data. */
  startInView() {
    if (this.dataset.auto === undefined || !mayStart()) return;
    this.classList.add("cl-auto");
    // A lab without a picture has nothing to show before it starts, so it starts a little earlier.
    const when = this.querySelector(".cl-poster") ? { threshold: 0.25 } : { rootMargin: "300px" };
    whenSeen(this, when, () => {
      if (!this.classList.contains("cl-live")) this.start();
    });
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

/** "Born in your tab" on the page of a chapter: its script makes the element when it comes. @param {HTMLElement} element */
function later(element) {
  const note = noteOf("It loads 0.1 MB and trains in your browser. Nothing is uploaded.");
  const load = () =>
    new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: new URL("birth.js", here).href });
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error("birth.js did not load")));
      document.head.append(script);
    });
  const begin = async () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    const had = element.contains(document.activeElement);
    try {
      await load();
      start.remove();
      if (had) /** @type {HTMLElement | null} */ (element.querySelector(".cl-go"))?.focus({ preventScroll: true });
    } catch (error) {
      note.textContent = `This did not work: ${error instanceof Error ? error.message : error}. Try again.`;
    }
    button.removeAttribute("aria-disabled");
  };
  const button = goButton("Train a model here", begin);
  const start = document.createElement("div");
  start.className = "cl-start";
  start.append(button, note);
  element.append(start);
  if (!mayStart()) return;
  element.classList.add("cl-auto");
  whenSeen(element, { rootMargin: "300px" }, begin);
}

for (const element of document.querySelectorAll("circuit-birth[data-later]")) later(/** @type {HTMLElement} */ (element));
