"""Draw the picture of the README and the introduction: the two heads that copy, found in a shipped model.

python -m tools picture
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "book/_static/induction.png"
TEXT = "Mr Dorling sailed in May. The captain knew Mr Dorling"


def main() -> None:
    import matplotlib.pyplot as plt

    import circuitkit as ck
    from circuitkit import figures, induction

    figures.style()
    model = ck.load_model("two-layer")
    found = induction.scores(model)
    (previous, _), (inducer, _) = found.top("previous_token", 1)[0], found.top("prefix_matching", 1)[0]
    _, cache = model.run_with_cache(TEXT)
    tokens = [token.replace(" ", "·").replace("<|endoftext|>", "start") for token in model.to_str_tokens(TEXT)]
    fig, axes = plt.subplots(1, 2, figsize=(9.6, 5.0), sharey=True)
    titles = {previous: "looks one token back", inducer: "finds what came next last time"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        layer, head = (int(part) for part in name[1:].split("H"))
        pattern = cache["pattern", layer][0, head]
        image = ax.imshow(pattern, **figures.unsigned(pattern, limit=1))
        ax.set_title(f"{name} {title}")
        ax.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=9)
        ax.set_yticks(range(len(tokens)), tokens, fontsize=9)
        ax.set_xlabel("source token")
    axes[0].set_ylabel("destination token")
    fig.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
    alt = f'{previous} puts its weight one token back; {inducer} jumps from the second "Dorling" to what followed the first'
    made = figures.picture(fig, alt=alt)
    TARGET.write_bytes(made.png)
    print(made)


if __name__ == "__main__":
    main()
