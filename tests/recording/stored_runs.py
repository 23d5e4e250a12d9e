"""Short ways to write recordings for the tests of files."""

import os
from itertools import zip_longest

import torch
from torch import nn

import byname


class Given(nn.Module):
    """Returns the value that it is handed."""

    def forward(self, value):
        return value


class Places(nn.Module):
    """A module for each path; a forward hands values to them, in order."""

    def __init__(self, paths):
        super().__init__()
        for path in paths:
            *outer, last = path.split(".")
            module = self
            for name in outer:
                if name not in module._modules:
                    module.add_module(name, nn.Module())
                module = module._modules[name]
            module.add_module(last, Given())

    def forward(self, values):
        for path, value in values:
            if value is not NOTHING:
                self.get_submodule(path)(value)


NOTHING = object()


class Writer:
    """A recorder of `Places`; `how` is for `byname.record`."""

    def __init__(self, to, paths, **how):
        self.model = Places(paths)
        places = [self.model.get_submodule(path) for path in paths]
        self.recorder = byname.record(self.model, places, to=to, on_change=False, **how)
        self.close = self.recorder.close

    def forward(self, **values):
        """One iteration, with a value of each place."""
        self.model(values.items())

    def window(self, places):
        """An iteration for each value of the longest list, and a flush; `places` maps paths to lists of values."""
        for values in zip_longest(*places.values(), fillvalue=NOTHING):
            self.model(zip(places, values))
        self.recorder.flush()


def written(path, places, **how):
    """A file with these values; `places` maps paths to lists of values."""
    writer = Writer(path, places, **how)
    writer.window(places)
    writer.close()
    return path


def reads_of(monkeypatch):
    """A list of the sizes of what is read from files from now on."""
    sizes, read = [], os.preadv

    def counted(descriptor, buffers, *where):
        sizes.append(sum(map(len, buffers)))
        return read(descriptor, buffers, *where)

    monkeypatch.setattr(os, "preadv", counted)
    return sizes


def kept(value, **how):
    """What a recording keeps of a value; `how` is for `byname.record`."""
    model = nn.Identity()
    with byname.record(model, "forward", **how) as recorder:
        model(value)
    (made,) = recorder.results["forward"].values
    return made


def bits(value):
    """What has to be equal for two values to be the same, bit by bit and in type."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    if isinstance(value, dict):
        return [(bits(key), bits(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(one) for one in value]
    return type(value).__name__, repr(value)
