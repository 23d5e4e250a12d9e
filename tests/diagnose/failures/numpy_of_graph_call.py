# cause: numpy-of-graph
# culprits: hidden
# kind: error
# mended 2: spectrum = torch.fft.fft(hidden).abs()
import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(4, 8)


def features(x):
    hidden = encoder(x)  #: 1
    spectrum = torch.from_numpy(abs(hidden.numpy()))  #: 2
    return spectrum


features(torch.randn(2, 4))
