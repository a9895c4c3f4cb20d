"""The cell of each chapter that takes a model of the reader measures something on a tiny one; nbval runs it without a name."""

import re
from pathlib import Path

import nbformat
import pytest
import torch

CHAPTERS = sorted((Path(__file__).resolve().parents[2] / "book").glob("[0-9]*.ipynb"))
EMPTY = 'name = ""'
MEASURES = {
    1: r"^'\w+': -?[\d.]+ above the mean logit\n +logit of \d+ minus the mean logit\npart +\n"
    r"(\S+( MLP| bias)? +-?[\d.]+\n){3,8}$",
    2: r"^raise most: L\dH\d -?[\d.]+(, .*)?\nlower most: .*\n\d+% of 4 heads raise what they see\n$",
    3: r"without nothing .*\nwithout induction .*\nwithout previous token .*\nwithout random .*\n$",
    4: r"^644 heads in all, 5 for a neuron\nKL per token -?\d\.\de-\d+ nats, same first choice 100%\n$",
    5: r"^second pass over random tokens: [\d.]+ nats\n(  without L\dH\d +[+-][\d.]+\n){4}  without( L\dH\d){4} +[+-]",
}
"""What each cell prints for a model of two layers of two heads and 64 neurons."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 with a tokenizer of single words, as `save_pretrained` stores it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<end>", "The", "capital", "of", "is", "When", "the", "sun", "rose"]
    words += [f"w{i}" for i in range(len(words), 60)]
    numbered = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(numbered, unk_token="<end>"))
    tokenizer.pre_tokenizer = Whitespace()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<end>")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=256, n_embd=16, n_layer=2, n_head=2)
    place = tmp_path_factory.mktemp("tiny")
    GPT2LMHeadModel(config).save_pretrained(place)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(place)
    return place


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_the_cell_for_a_model_of_the_reader_measures_it(
    path, folder, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)  # it writes a report
    cells = nbformat.read(path, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    (turn,) = [source for source in sources if source.startswith(EMPTY)]
    exec(sources[1], scope := {})  # the imports
    exec(turn.replace(EMPTY, f"name = {str(folder)!r}", 1), scope)
    assert re.search(MEASURES[int(path.name[:2])], capsys.readouterr().out)
