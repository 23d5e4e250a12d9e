"""What does a low-rank adapter add to a layer?"""

from torch import nn


class Lora(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))
