"""Every chapter has one cell that takes a model of the reader: without a name it explains itself, with one it measures."""

import re
from pathlib import Path

import nbformat
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.ipynb"))
EMPTY = 'name = ""'
SAYS = {
    1: r"^'\w+': -?[\d.]+ above the mean logit\n(  \S+( MLP| bias)? +[+-][\d.]+\n){3,8}$",
    2: r"^raise most: L\dH\d -?[\d.]+(, .*)?\nlower most: .*\n\d+% of 4 heads raise what they see\n$",
    3: r"without nothing .*\nwithout induction .*\nwithout previous token .*\nwithout random .*\n$",
    4: r"^644 heads in all, 5 for a neuron\nKL per token -?\d\.\de-\d+ nats, same first choice 100%\n$",  # 2 (2 + 5 x 64)
    5: r"^second pass over random tokens: [\d.]+ nats\n(  without L\dH\d +[+-][\d.]+\n){4}  without( L\dH\d){4} +[+-]",
}
"""What each chapter's cell prints for a model of two layers of two heads."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny GPT-2 with a tokenizer of single words, as `save_pretrained` leaves it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = {
        word: i
        for i, word in enumerate(
            ["<end>", "The", "capital", "of", "is", "When", "the", "sun", "rose"]
        )
    }
    words |= {f"w{i}": i for i in range(len(words), 60)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = Whitespace()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<end>")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=60, n_positions=256, n_embd=16, n_layer=2, n_head=2)
    )
    place = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(place)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(place)
    return place


def cells(path):
    return nbformat.read(path, as_version=4).cells


def turn(path):
    (found,) = [
        cell for cell in cells(path) if cell.cell_type == "code" and cell.source.startswith(EMPTY)
    ]
    return found


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_there_is_one_and_without_a_name_it_says_how_to_use_it(path):
    cell = turn(path)
    assert len(cell.source.splitlines()) <= 20
    (output,) = cell.outputs
    assert (
        output.text
        == "Set name to a model on the hub (needs internet) or to a folder, and run again.\n"
    )


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_it_stands_before_the_exercises(path):
    sources = [cell.source for cell in cells(path)]
    exercises = next(
        i for i, source in enumerate(sources) if re.search(r"^## Exercises", source, re.M)
    )
    assert sources.index(turn(path).source) < exercises


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_with_a_name_it_measures(path, folder, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # it writes a report
    imports = [cell.source for cell in cells(path) if cell.cell_type == "code"][1]
    scope = {}
    exec(imports, scope)
    exec(turn(path).source.replace(EMPTY, f"name = {str(folder)!r}", 1), scope)
    assert re.search(SAYS[int(path.name[:2])], capsys.readouterr().out)
