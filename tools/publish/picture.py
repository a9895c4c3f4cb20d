"""Draw the picture of the README and the introduction: the two heads that copy, found in a shipped model; for a phone one below the other.

python -m tools picture
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    ROOT / "book/_static/induction.png": (1, 2),
    ROOT / "book/_static/induction-phone.png": (2, 1),
}
SIZES = {(1, 2): (9.6, 5.0), (2, 1): (4.4, 9.2)}
TEXT = "Mr Dorling sailed in May. The captain knew Mr Dorling"


def main() -> None:
    import matplotlib.pyplot as plt

    import circuitkit as ck
    from circuitkit import figures, induction

    figures.style()
    model = ck.load_model("two-layer")
    scores = induction.scores(model)
    (previous,) = scores.select(behaviour="previous token").top(1)
    (inducer,) = scores.select(behaviour="prefix matching").top(1)
    _, cache = model.run_with_cache(TEXT)
    tokens = [
        token.replace(" ", "·").replace("<|endoftext|>", "start")
        for token in model.to_str_tokens(TEXT)
    ]
    titles = {previous: "looks one token back", inducer: "finds what came next last time"}
    alt = f'{previous} puts its weight one token back; {inducer} jumps from the second "Dorling" to what followed the first'
    for target, shape in TARGETS.items():
        fig, axes = plt.subplots(*shape, figsize=SIZES[shape], sharey=True)
        for ax, (name, title) in zip(axes, titles.items(), strict=True):
            layer, head = (int(part) for part in name[1:].split("H"))
            pattern = cache["pattern", layer][0, head]
            image = ax.imshow(pattern, **figures.unsigned(pattern, limit=1))
            ax.set_title(f"{name} {title}")
            ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=9)
            ax.set_yticks(range(len(tokens)), tokens, fontsize=9)
            ax.set_xlabel("source token")
        for ax in axes[:: shape[1]]:
            ax.set_ylabel("destination token")
        below = {"location": "bottom"} if shape[1] == 1 else {}
        fig.colorbar(image, ax=axes, label="attention weight", shrink=0.8, **below)
        made = figures.picture(fig, alt=alt)
        target.write_bytes(made.png)
        print(made)


if __name__ == "__main__":
    main()
