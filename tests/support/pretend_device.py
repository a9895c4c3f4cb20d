"""A pretend device without an accelerator: it finds tools that make a tensor in the wrong place.

The numbers of a tensor "there" lie on the processor. The tensor says that it lies elsewhere, and
an operation that mixes it with a tensor of the processor is refused, as on a real device.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

PLACE = torch.device("cpu:1")
# what a real device mixes, too: indices, copies, and numbers without axes
MAY_MIX = ("aten.index", "aten._to_copy", "aten.copy_", "aten._index_put", "aten.lift_fresh")


class There(torch.Tensor):
    """A tensor on the pretend device."""

    @staticmethod
    def __new__(cls, inner):
        settings = {"dtype": inner.dtype, "strides": inner.stride(), "device": PLACE}
        out = torch.Tensor._make_wrapper_subclass(cls, inner.shape, **settings)
        out.inner = inner
        return out

    def __repr__(self):
        return f"There({self.inner!r})"

    def tolist(self):
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        plain = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim]
        plain = [x for x in plain if not isinstance(x, There)]
        if plain and not str(function).startswith(MAY_MIX):
            shapes = [tuple(x.shape) for x in plain]
            raise RuntimeError(f"{function} mixes {PLACE} with tensors {shapes} of the processor")
        leaves = torch.device(kwargs.get("device") or PLACE) != PLACE
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        args_inside, kwargs_inside = tree_map(inside, (args, kwargs))
        out = function(*args_inside, **kwargs_inside)
        name = str(function).split(".")[1]
        if name.endswith("_") and not name.endswith("__"):  # changed in place
            return args[0] if args[0].shape == args[0].inner.shape else There(args[0].inner)
        stays_plain = leaves or "_local_scalar" in str(function)
        return out if stays_plain else tree_map(there, out)


def inside(thing):
    return thing.inner if isinstance(thing, There) else thing


def there(thing):
    is_plain = isinstance(thing, torch.Tensor) and not isinstance(thing, There)
    return There(thing) if is_plain else thing


class Factories(TorchFunctionMode):
    """`torch.zeros(..., device=PLACE)` and the like make tensors there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wanted = [*args[1:], *kwargs.values()]
        if function is torch.Tensor.to and not has_there(args[0]):
            dtypes = [x.dtype if isinstance(x, There) else x for x in wanted]
            dtypes = [x for x in dtypes if isinstance(x, torch.dtype)]
            if has_there(wanted) or PLACE in wanted or str(PLACE) in wanted:
                return There(args[0].to(dtypes[0]) if dtypes else args[0].clone())
        if "matmul" in function.__name__ and args[0].ndim == 1 < args[1].ndim:
            # torch would remove an axis in place, which a wrapper does not see
            return function(args[0][None], args[1])[..., 0, :]
        if function is torch.nn.functional.one_hot:
            # torch compares with a range that it makes inside, where no mode sees it
            out = function(inside(args[0]), *args[1:], **kwargs)
            return there(out) if has_there(args) else out
        if kwargs.get("device") is None or has_there((args, kwargs)):
            return function(*args, **kwargs)
        place = torch.device(kwargs.pop("device"))
        out = function(*args, **kwargs)
        return there(out) if place == PLACE else out


def has_there(thing):
    return any(isinstance(x, There) for x in tree_leaves(thing))


@contextmanager
def pretend_device():
    with pytest.MonkeyPatch.context() as patch, Factories():
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        yield


def moved(model):
    """The model itself, with all its numbers on the pretend device."""
    for module in model.modules():
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                if tensor is not None and not isinstance(tensor, There):
                    new = There(tensor.detach())
                    kind[name] = (
                        torch.nn.Parameter(new, False) if kind is module._parameters else new
                    )
    model.cfg.device = str(PLACE)
    return model
