window.circuitkitFrames ??= function (id) {
  for (const figure of document.querySelectorAll(`[id="${id}"]:not([data-live])`)) {
    figure.dataset.live = "";
    const frames = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const image = figure.querySelector("img");
    frames.at(-1).src = image.src;
    const slider = document.createElement("input");
    Object.assign(slider, { type: "range", min: 0, max: frames.length - 1, step: 1, value: frames.length - 1 });
    slider.setAttribute("aria-label", figure.dataset.label);
    const output = document.createElement("output");
    const move = () => {
      const frame = frames[slider.value];
      image.src = frame.src;
      image.alt = frame.alt;
      output.textContent = `${figure.dataset.label} ${frame.step}`;
      slider.setAttribute("aria-valuetext", output.textContent);
    };
    slider.addEventListener("input", move);
    figure.querySelector(".ck-slider").replaceChildren(slider, output);
    move();
  }
};
