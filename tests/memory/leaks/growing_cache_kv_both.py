# cause: growing-cache
# name: keys[*]
# steps: 12
# count: 12
# bytes: 12 * (4 * 2 * 144 * 4)
# left: 12 * (4 * 2 * 144 * 4)
# mended 1: keys.append(k.clone())
# mended 2: values.append(v.clone())
# Keys and values are the two halves of one storage: it counts once, whichever of the two lists is named for it.
# Copies do not mend it, so it is no matter of views: the halves are all there is. The cache grows with the text, as caches do.
import torch

project = torch.nn.Linear(72, 144, bias=False)
keys, values = [], []


def step(i):
    with torch.no_grad():
        k, v = project(torch.randn(4, 2, 72)).chunk(2, dim=-1)
    keys.append(k)  #: 1
    values.append(v)  #: 2
