"""Activation functions by their formulas, independent of torch.nn.functional and of the library."""

import math

import torch


def gelu_of_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


EXACT = {
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "relu": lambda x: x.clamp_min(0),
    "gelu": lambda x: 0.5 * x * torch.special.erfc(-x / math.sqrt(2)),
    "gelu_new": gelu_of_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
WHOLE_LINE = [name for name in EXACT if name != "sigmoid"]
